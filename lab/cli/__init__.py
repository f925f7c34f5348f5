"""The commands `localdflash train`, `bench` and `export`."""
