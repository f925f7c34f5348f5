"""Downloads by processes: killed at any point, two at once, without a network."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hub import COMMIT, FakeHub, File, environment, in_hub_cache

DATA = os.urandom(1 << 20) * 8
SHA256 = hashlib.sha256(DATA).hexdigest()

pytestmark = pytest.mark.system

# Fetches one file as `models pull` does. Code inserted before the call may break it.
FETCH = """
import os, signal, sys
from pathlib import Path
from localdflash.cli.pull import LineReport
from localdflash.base.errors import LocaldflashError
from localdflash.models.registry import download
from localdflash.models.registry import records
from localdflash.models.registry.download import plan
from localdflash.models.registry.pair_entry import FileSource
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{before}
try:
    want = FileSource("o/n", "x.gguf")
    print("here" if want.installed_record() else plan(want).fetch(LineReport()).sha256)
except LocaldflashError as error:
    sys.exit(str(error))
"""
NO_SOCKETS = """
import socket
def refuse(*_, **__): die()
socket.socket.__init__ = socket.getaddrinfo = refuse
"""


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.files["o/n/x.gguf"] = File(DATA)
        yield running


@pytest.fixture
def path(home: Path) -> Path:
    return home / "cache" / "models" / "o" / "n" / "x.gguf"


def start(server: FakeHub, path: Path, before: str = "", **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", FETCH.format(before=before)],
        env=environment(server, path.parents[5]) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out.strip(), err.strip()


def pulled(server: FakeHub, path: Path) -> None:
    """Check that the next pull succeeds, whatever the previous one left."""
    assert finish(start(server, path))[:2] == (0, SHA256)
    assert path.read_bytes() == DATA
    assert not [entry for entry in path.parent.iterdir() if entry.name.endswith((".partial", ".mismatch"))]
    assert finish(start(server, path))[:2] == (0, "here")


@pytest.mark.parametrize("percent", [0, 50])
def test_killed_while_bytes_come(percent: int, server: FakeHub, path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stop(sent: int) -> None:
        if sent >= len(DATA) * percent // 100:
            reached.set()
            go_on.wait(30)

    server.sent = stop
    process = start(server, path)
    assert reached.wait(30)
    process.send_signal(signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
    go_on.set()
    server.sent = lambda _count: None
    assert not path.exists()
    kept_bytes = sum(partial.stat().st_size for partial in path.parent.glob(".x.gguf.*.partial"))
    assert kept_bytes < len(DATA)
    pulled(server, path)
    assert server.downloads("o/n/x.gguf")[1] == (f"bytes={kept_bytes}-" if kept_bytes else None)


@pytest.mark.parametrize(
    ("before", "complete"),
    [
        ("download.verified = die", False),
        ("Path.replace = die", False),
        ("records.write = die", True),
        ("os.fsync = die", False),
        ("os.link = die", False),
    ],
)
def test_killed_after_the_last_byte(before: str, complete: bool, server: FakeHub, path: Path, tmp_path: Path) -> None:
    if "link" in before:
        in_hub_cache(tmp_path, "o/n/x.gguf", DATA, SHA256, COMMIT)
    assert finish(start(server, path, before))[0] == -signal.SIGKILL
    assert path.exists() == complete
    if complete:
        assert path.read_bytes() == DATA
    pulled(server, path)
    assert len(server.downloads("o/n/x.gguf")) <= 1


def test_two_at_once_wait_for_each_other(server: FakeHub, path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def stop(_sent: int) -> None:
        began.set()
        go_on.wait(30)

    server.sent = stop
    first = start(server, path)
    assert began.wait(30)
    second = start(server, path)
    assert second.stderr
    assert second.stderr.readline() == "waiting for another localdflash that is downloading x.gguf\n"
    go_on.set()
    assert finish(first)[:2] == (0, SHA256)
    assert finish(second) == (0, SHA256, ""), "it neither downloads nor hashes"
    assert len(server.downloads("o/n/x.gguf")) == 1


def test_offline_opens_no_socket(server: FakeHub, path: Path, tmp_path: Path) -> None:
    code, out, err = finish(start(server, path, NO_SOCKETS, HF_HUB_OFFLINE="1"))
    assert (code, out) == (1, "")
    assert err == "o/n/x.gguf: not downloaded, and HF_HUB_OFFLINE forbids downloads; unset it"
    in_hub_cache(tmp_path, "o/n/x.gguf", DATA, SHA256, COMMIT)
    assert finish(start(server, path, NO_SOCKETS, HF_HUB_OFFLINE="1"))[:2] == (0, SHA256)
    assert server.requests == []
