"""Daemons for tests: a home whose socket's path is short enough, and nothing left of it afterwards."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from localdflash.files import paths
from localdflash.server.address import Address
from localdflash.server.client import Client, find

PROGRAM = "import sys; from localdflash.cli import main; sys.exit(main())"
SLOW = (
    "import time; from localdflash.engine.host_pair import HostPair;"
    "step = HostPair.step; HostPair.step = lambda *a: (time.sleep(0.05), step(*a))[1];"
)
# httpcore leaves the socket of a refused connection to the garbage collector.
DROPPED_SOCKET = r"ignore:(?s).*unclosed <socket|Exception ignored in. <socket"
LONG = {"stream": True, "max_tokens": 600, "temperature": 3.0, "seed": 1}  # an answer of half a minute, when slow


_begun: list["subprocess.Popen[str]"] = []


@contextmanager
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """LOCALDFLASH_HOME under /tmp; whatever runs with it at the end is killed."""
    folder = Path(tempfile.mkdtemp(prefix="ldf", dir="/tmp"))
    monkeypatch.setenv("LOCALDFLASH_HOME", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        yield folder
    finally:
        for process in daemons(folder):
            process.kill()
            process.wait(10)
        for begun in _begun:
            begun.kill()
            begun.communicate()
        _begun.clear()
        shutil.rmtree(folder)


def daemons(folder: Path) -> list[psutil.Process]:
    """The daemons that run with this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if "serve" in process.cmdline() and process.environ().get("LOCALDFLASH_HOME") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def begin(*arguments: str, program: str = PROGRAM) -> "subprocess.Popen[str]":
    """`localdflash serve` on one thread."""
    command = [sys.executable, "-P", "-c", program, "serve", "--threads", "1", *arguments]
    _begun.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return _begun[-1]


def start(*arguments: str, program: str = PROGRAM) -> "subprocess.Popen[str]":
    """The same, as soon as its pair is loaded, or the process has ended."""
    process = begin(*arguments, program=program)
    until(lambda: process.poll() is not None or is_ready())
    return process


def is_ready() -> bool:
    """Whether a daemon answers and has loaded its pair."""
    client = find()
    return client is not None and client.health().get("status") == "ok"


@contextmanager
def client() -> Iterator[Client]:
    """A client of the daemon, whether it answers or not."""
    yield Client(Address(paths.engine_socket()))


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition, which has to come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def killed(process: "subprocess.Popen[str]") -> None:
    """kill -9."""
    process.kill()
    process.wait(10)


def said(process: "subprocess.Popen[str]", seconds: float = 30) -> tuple[int, list[str]]:
    """How a daemon ended: its exit code and its lines."""
    _, err = process.communicate(timeout=seconds)
    return process.returncode, err.splitlines()
