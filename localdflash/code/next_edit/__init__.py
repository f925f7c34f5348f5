"""Next edits: propose what a user is likely to change next, by rules on the latest edits or by a model."""
