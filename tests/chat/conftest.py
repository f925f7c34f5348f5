"""The server of the tests of the API, for chats that ask it."""

from tests.support.served import app, engine, live, metrics, plain

__all__ = ["app", "engine", "live", "metrics", "plain"]
