"""The daemon, which serves HTTP for the loaded pairs on a local socket, and the client that finds or starts it."""
