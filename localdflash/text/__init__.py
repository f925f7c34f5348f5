"""Text and token ids: tokenizer, chat templates, FIM prompts, grammars, tool calls, streams, safe terminal output."""
