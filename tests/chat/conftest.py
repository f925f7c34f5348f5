"""The server of the tests of the API, for chats that ask it."""

from tests.support.served import app, engine_set, live, metrics, plain, worker

__all__ = ["app", "engine_set", "live", "metrics", "plain", "worker"]
