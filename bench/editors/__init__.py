"""Real editors: fetched, and driven from outside as their user would."""
