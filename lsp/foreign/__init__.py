"""Completions by another server, the one that `[server] url` names."""
