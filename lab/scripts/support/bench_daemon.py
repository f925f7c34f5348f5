"""Start a daemon, wait until it is ready, and connect to it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from localdflash.base.errors import EngineDisconnect
from localdflash.base.files import paths
from localdflash.server.address import Address
from localdflash.server.client import Client, find_daemon

ROOT = Path(__file__).resolve().parents[3]  # root folder of the source tree
PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"


def is_ready() -> bool:
    """Return whether a daemon answers and has loaded its pair."""
    try:
        client = find_daemon()
        return client is not None and client.health().get("status") == "ok"
    except EngineDisconnect:  # the daemon exited after `find`
        return False


@contextmanager
def client() -> Iterator[Client]:
    """Yield a client of the daemon without checking that the daemon answers."""
    yield Client(Address(paths.daemon_socket()))


@contextmanager
def running(*command: str) -> Iterator[Path]:
    """Run a daemon in a new LOCALDFLASH_HOME, yield that folder once the daemon is ready, and kill it at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home,
        patch.dict(os.environ, LOCALDFLASH_HOME=home),
        subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process,
    ):
        try:
            until(is_ready, 180)  # a model loads in seconds, on a busy machine in a minute
            yield Path(home)
        finally:
            process.kill()


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition; fail if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition did not become true within {seconds} s"
        time.sleep(0.01)
