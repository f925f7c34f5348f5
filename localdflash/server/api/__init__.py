"""What the daemon answers over HTTP: OpenAI's requests, Anthropic's, llama-server's, and its own."""
