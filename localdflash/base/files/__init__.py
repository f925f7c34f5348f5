"""localdflash's own files: folders, settings in TOML, opening files safely."""
