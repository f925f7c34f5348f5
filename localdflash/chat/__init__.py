"""A chat without its screen: messages, sessions on disk, what is attached, what the engine answers."""
