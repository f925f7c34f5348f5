"""The daemon as seen from outside: the program that starts one, waiting for it, asking it."""

import time
from collections.abc import Callable
from pathlib import Path

from localdflash.files import paths
from localdflash.server.client import Client, find

ROOT = Path(__file__).resolve().parents[2]  # of the source tree
PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"


def is_ready() -> bool:
    """Whether a daemon answers and has loaded its pair."""
    if client := find():
        with client:
            return client.health().get("status") == "ok"
    return False


def client() -> Client:
    """A client of the daemon, whether it answers or not."""
    return Client.of_socket(paths.engine_socket())


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition, which has to come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
