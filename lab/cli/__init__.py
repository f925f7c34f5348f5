"""The commands `localdflash train` and `localdflash bench`."""
