"""HTTP API of the daemon: OpenAI's, Anthropic's, llama-server's and its own requests."""
