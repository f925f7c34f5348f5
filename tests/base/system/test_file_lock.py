"""Locks of open files, shared or exclusive, and locks of one process."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localdflash.base.system import file_lock
from localdflash.base.system.file_lock import process_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content")
    return tmp_path / "file"


def test_one_excludes_another_descriptor_of_this_process(path: Path) -> None:
    with path.open("r+b") as one, path.open("r+b") as other:
        assert file_lock.try_lock(one.fileno())
        assert not file_lock.try_lock(other.fileno())
        assert not file_lock.try_lock(other.fileno(), shared=True)
        assert other.read() == b"content"


HOLD = "import sys, time; from pathlib import Path; from localdflash.base.system.file_lock import process_lock\n"
HOLD += "with process_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n"
WAIT = "    time.sleep(60)\n"
FORK = "    import ctypes\n    if ctypes.CDLL(None).fork() == 0:\n        time.sleep(60)\n"
FORK += "    print('forked', flush=True)\n" + WAIT


def holder(path: Path, then: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD + then, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def ended(process: "subprocess.Popen[str]") -> None:
    """Kill a process and its forks."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_another_process_is_refused_until_this_one_ends(tmp_path: Path) -> None:
    process = holder(tmp_path / "lock", WAIT)
    with pytest.raises(TimeoutError), process_lock(tmp_path / "lock"):
        pass
    ended(process)
    with process_lock(tmp_path / "lock"):
        pass


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "fork"), reason="no forks")
def test_a_fork_of_c_code_does_not_keep_it(tmp_path: Path) -> None:
    process = holder(tmp_path / "lock", FORK)
    assert process.stdout
    assert process.stdout.readline() == "forked\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    with process_lock(tmp_path / "lock", timeout=2):
        pass
    ended(process)


def test_the_same_process_has_it_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with process_lock(path):
        for _ in range(2):  # a refusal takes nothing away
            with pytest.raises(TimeoutError), process_lock(path):
                pass
        process = subprocess.run([sys.executable, "-P", "-c", HOLD, str(path)], capture_output=True, check=False)
        assert process.returncode
    with process_lock(path):
        pass


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    with process_lock(tmp_path / "lock"):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
