"""The benchmark of pairs that chat: their own template, every way to decode in turn, what a user waits for."""
