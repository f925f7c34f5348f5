"""Completions at a cursor, the part that needs the model: the prompt by tokens, and where the text ends."""
