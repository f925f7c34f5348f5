"""Scripts that measure; nothing of this is installed."""
