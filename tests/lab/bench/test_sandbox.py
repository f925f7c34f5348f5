"""Limits of the sandbox; tests of Linux's protections need a machine that has them."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.lab.bench import jail, sandbox
from localdflash.lab.bench.sandbox import run


@pytest.fixture(scope="module")
def shut() -> dict[str, str]:
    """Return the protections that this machine has."""
    return run("").restrictions


def outcome(program: str, **limits: Any) -> str:
    return run(program, **limits).outcome


def refused(statement: str, error: str = "OSError") -> str:
    """Return a program that passes where a statement fails."""
    return f"import os\ntry:\n    {statement}\nexcept {error}:\n    pass\nelse:\n    raise SystemExit"


def test_a_program_that_runs_to_its_end_passes() -> None:
    assert outcome("import math, typing, collections\nassert math.pi > 3\nprint('x' * 1_000_000)") == "passed"
    assert outcome("x = 'é😀'\nassert len(x) == 2\nassert __name__ == '__main__'") == "passed"


@pytest.mark.parametrize(
    "program",
    [
        *("assert 0", "1 +", "import os; os._exit(0)", "raise SystemExit(0)", "x = '\ud800'"),
        "import os, signal\nsignal.alarm(1)\nwhile True: pass",
        "import ctypes; ctypes.string_at(0)",
        "import os\nfor number in range(3, 20):\n    try: os.write(number, b'y' * 100_000)\n    except OSError: pass",
        "import os\nfor n in range(3, 20):\n    try: os.write(n, b'0' * 32)\n    except OSError: pass\nos._exit(0)",
    ],
)
def test_a_program_that_does_not_end_normally_fails(program: str) -> None:
    assert outcome(program) == "failed"


def test_an_endless_loop_times_out() -> None:
    began = time.monotonic()
    assert outcome("while True: pass", seconds=1) == "timeout"
    assert outcome("import time; time.sleep(60)", seconds=0.5) == "timeout"
    assert time.monotonic() - began < 10


def test_memory_is_limited() -> None:
    assert outcome(refused("bytearray(1 << 31)", "MemoryError")) == "passed"
    assert outcome("x = bytearray(1 << 28)", memory=1 << 30) == "passed"


def test_files_cannot_be_written() -> None:
    assert outcome(refused("open('x', 'wb', buffering=0).write(b'x')")) == "passed"
    assert outcome(refused("os.write(os.memfd_create('x'), b'x')", "(OSError, AttributeError)")) == "passed"


def test_environment_and_package_are_not_available() -> None:
    assert outcome("import os\nassert set(os.environ) <= {'LC_CTYPE'}\nassert os.listdir('.') == []") == "passed"
    assert (
        outcome("import sys\nassert sys.stdin.read() == ''\nassert len(sys.argv) == 3 and sys.flags.isolated")
        == "passed"
    )
    assert outcome("import os\nassert os.getpgid(0) == os.getsid(0) == os.getpid()") == "passed"


def test_files_outside_cannot_be_read(shut: dict[str, str], tmp_path: Path) -> None:
    if shut["files"] == "none":
        pytest.skip("this kernel has no Landlock")
    kept = tmp_path / "kept"
    kept.write_text("mine")
    kept.chmod(0o600)
    for statement in (
        *(
            f"os.remove({str(kept)!r})",
            f"open({str(kept)!r})",
            f"open({str(kept)!r}, 'a')",
            f"os.rmdir({str(tmp_path)!r})",
        ),
        *(f"os.rename({str(kept)!r}, 'x')", f"os.listdir({str(tmp_path)!r})", f"os.truncate({str(kept)!r}, 0)"),
        *("open('/etc/passwd')", f"os.listdir({str(Path.home())!r})", f"os.symlink('x', {str(tmp_path / 'l')!r})"),
    ):
        assert outcome(refused(statement)) == "passed", statement
    assert kept.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [kept]


def test_other_processes_cannot_be_reached(shut: dict[str, str], tmp_path: Path) -> None:
    if shut["processes"] != "filter":
        pytest.skip("no filter for this machine")
    kept = tmp_path / "kept"
    kept.write_text("mine")
    kept.chmod(0o600)
    for statement in (
        *(
            "os.fork()",
            "import subprocess; subprocess.run(['true'])",
            "os.execv('/bin/true', ['true'])",
            "os.kill(1, 0)",
        ),
        *(
            f"os.kill({os.getpid()}, 0)",
            "os.killpg(0, 9)",
            f"os.chmod({str(kept)!r}, 0o777)",
            f"os.utime({str(kept)!r})",
        ),
        *("os.posix_spawn('/bin/true', ['true'], {})", f"os.chown({str(kept)!r}, 1, 1)"),
    ):
        assert outcome(refused(statement)) == "passed", statement
    assert outcome(refused("import threading; threading.Thread(target=print).start()", "RuntimeError")) == "passed"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_the_network_cannot_be_reached(shut: dict[str, str]) -> None:
    if shut["network"] == "module":
        assert outcome(refused("import socket", "ImportError")) == "passed"
    else:
        assert outcome(refused("import socket; socket.socket().connect(('127.0.0.1', 9))")) == "passed"
        assert outcome(refused("import socket; socket.create_connection(('1.1.1.1', 53), 1)")) == "passed"


def test_a_sandbox_that_does_not_start_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "JAIL", tmp_path / "missing.py")
    with pytest.raises(LocaldflashError, match="nothing was run"):
        run("x = 1" * 100_000)


@pytest.mark.parametrize(("column", "machine"), [(0, "x86_64"), (1, "aarch64")])
def test_the_numbers_of_system_calls_differ(column: int, machine: str) -> None:
    numbers = [found[column] for found in jail.CALLS.values() if found[column] != jail.NO_CALL]
    assert len(numbers) == len(set(numbers))
    assert jail.MACHINES[machine][0] == column
