"""Anthropic's Messages, for agents that know nothing else: our chat in its words."""
