"""The server of the tests of the API, for chats that ask it."""

from tests.support.served import app, live, metrics, plain, worker

__all__ = ["app", "live", "metrics", "plain", "worker"]
