"""What the daemon answers over HTTP: OpenAI's requests, llama-server's, and its own."""
