"""GPU crashes: real processes that abort or are killed, during GPU work or not."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from localdflash.base.files.paths import runtime_folder
from localdflash.base.machine import gpu_watch
from localdflash.base.machine.gpu_watch import UNWATCHED, count_crashes, watch

IMPORTS = "import os, signal; from contextlib import ExitStack; from localdflash.base.machine.gpu_watch import watch\n"
ABORT, KILL = "os.abort()", "os.kill(os.getpid(), signal.SIGKILL)"
INSIDE = "with ExitStack() as stack, watch(stack) as flag:\n    with flag: pass\n    {}"
OUTSIDE = "with ExitStack() as stack:\n    with watch(stack): pass\n    {}"


def end(program: str) -> int:
    """Return the exit code of a process that runs this program."""
    return subprocess.run([sys.executable, "-P", "-c", IMPORTS + program], timeout=60, check=False).returncode


def test_crash_during_gpu_work_is_counted() -> None:
    for times, (how, ended_by) in enumerate(((ABORT, signal.SIGABRT), (KILL, signal.SIGKILL)), 1):
        assert end(INSIDE.format(how)) == -ended_by
        assert [count_crashes(), count_crashes()] == [times, times]
    with ExitStack() as stack, watch(stack):
        assert count_crashes() == 2
    assert count_crashes() == 2, "the next watch keeps what it finds"


@pytest.mark.parametrize("program", [OUTSIDE.format(ABORT), INSIDE.format("raise SystemExit(1)")])
def test_other_exits_are_not_counted(program: str) -> None:
    assert end(program) != 0
    assert count_crashes() == 0


def test_crashes_expire_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_folder().mkdir(parents=True, mode=0o700)
    (runtime_folder() / "gpu").write_bytes(b"1")
    assert count_crashes() == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + gpu_watch.MAX_AGE_SECONDS)
    assert count_crashes() == 0


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"1", b"0\nyesterday\n-5\n\n7\n", bytes(5000)])
def test_damaged_file_is_ignored(content: bytes) -> None:
    runtime_folder().mkdir(parents=True, mode=0o700)
    (runtime_folder() / "gpu").write_bytes(content)
    assert count_crashes() == (1 if content == b"1" else 0)
    with ExitStack() as stack:
        assert watch(stack) is not UNWATCHED
