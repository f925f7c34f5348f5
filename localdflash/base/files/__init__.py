"""Files of our own: folders, settings in TOML, opening files safely."""
