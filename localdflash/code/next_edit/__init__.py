"""Propose what a user is likely to change next, from the latest changes, by rules and without a model."""
