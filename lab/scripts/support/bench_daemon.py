"""The daemon as seen from outside: start one, wait for it, ask it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localdflash.base.errors import EngineGone
from localdflash.base.files import paths
from localdflash.server.address import Address
from localdflash.server.client import Client, find

ROOT = Path(__file__).resolve().parents[3]  # of the source tree
PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"


def is_ready() -> bool:
    """Return whether a daemon answers and has loaded its pair."""
    try:
        client = find()
        return client is not None and client.health().get("status") == "ok"
    except EngineGone:  # between the two
        return False


@contextmanager
def client() -> Iterator[Client]:
    """A client of the daemon, whether it answers or not."""
    yield Client(Address(paths.engine_socket()))


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition; fail if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
