"""A server for chats, and the end of every store that a test opened."""

from collections.abc import Iterator

import pytest

from tests.chat.stored import OPENED
from tests.support.served import app, engine_set, live, metrics, plain, worker

__all__ = ["app", "engine_set", "live", "metrics", "plain", "worker"]


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
