"""Completions at a cursor, the part that needs a tokenizer: the prompt, and where the text ends."""
