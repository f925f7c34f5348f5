"""The server of the tests of the API, for chats that ask it."""

from tests.server.api.conftest import app, live, metrics, plain, worker

__all__ = ["app", "live", "metrics", "plain", "worker"]
