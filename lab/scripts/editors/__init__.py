"""Real editors: fetch them, and drive them from outside as their user would."""
