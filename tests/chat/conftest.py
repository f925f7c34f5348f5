"""Server for chats, and cleanup of the stores that a test opened."""

from collections.abc import Iterator

import pytest

from tests.chat.stored import OPEN_STORES
from tests.support.served import app, engine_set, live, metrics, plain, worker

__all__ = ["app", "engine_set", "live", "metrics", "plain", "worker"]


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    while OPEN_STORES:
        OPEN_STORES.pop().close()
