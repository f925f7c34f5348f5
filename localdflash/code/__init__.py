"""What is known about source code: FIM completions, context from other files, next edits."""
