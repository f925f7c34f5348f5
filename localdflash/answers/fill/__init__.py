"""Completions at a cursor, the part that needs the model: the prompt by tokens, and when to stop."""
