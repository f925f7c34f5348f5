"""Errors, paths, TOML, locks, processes, sockets, and facts about the machine. Imports nothing above it."""
