"""Completions by a remote server, the one that `[server] url` names."""
