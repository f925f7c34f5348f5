"""The daemon: one warm engine behind a Unix socket, and the client that finds or starts it."""
