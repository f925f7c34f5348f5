"""The Textual chat. Installed as localdflash.tui."""
