"""Scripts for measurements and tests; they are not installed."""
