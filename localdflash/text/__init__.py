"""Text and token ids: vocabularies, chat templates, fill-in-the-middle prompts, streams, safe terminal output."""
