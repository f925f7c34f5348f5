"""Completions by the remote server that the setting `[server] url` names."""
