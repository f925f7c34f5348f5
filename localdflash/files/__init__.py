"""Files of our own: folders, settings in TOML, what may be opened."""
