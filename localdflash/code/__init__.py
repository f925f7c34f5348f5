"""Source code: FIM completions, context from other files, next edits."""
