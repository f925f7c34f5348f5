"""OpenAI's Responses, of which nothing is kept: our chat in their words."""
