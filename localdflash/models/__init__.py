"""Model files, the registry of pairs, memory planning, and settings."""
