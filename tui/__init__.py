"""The chat on a terminal, built with Textual. Installed as localdflash.tui."""
