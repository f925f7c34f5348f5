"""Trial load of new files in a child: a crash or a hang is a one-line error, and is stored."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.machine import gpu_watch
from localdflash.loading import load_pair, trial
from localdflash.loading.load_pair import LoadedPair
from localdflash.loading.proof import SOUND
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import MODELS_FOLDER
from tests.support.daemons import until

pytestmark = pytest.mark.tries_files
Commands = Callable[[str], list[list[str]]]


@pytest.fixture
def options(tiny_pair: Path, tmp_path: Path) -> Options:
    """Return the options of a target at a path that was never loaded."""
    target = shutil.copy(tiny_pair / "target.gguf", tmp_path / "target.gguf")
    return Options(str(target), "llama.cpp", threads=1, context=64, rows="fast")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Return a function that makes the child run another program; it returns the started commands."""
    started: list[list[str]] = []
    real = subprocess.Popen

    def begin(program: str) -> list[list[str]]:
        def popen(command: list[str], **rest: Any) -> Any:
            started.append(command)
            return real([sys.executable, "-P", "-c", program, *command[4:]] if program else command, **rest)

        monkeypatch.setattr(subprocess, "Popen", popen)
        return started

    return begin


def test_a_new_or_changed_file_is_tried_once(options: Options, children: Commands) -> None:
    started = children("")
    for _ in range(2):
        with LoadedPair(options) as loaded:
            assert loaded.context == 64
        assert len(started) == 1
    Path(options.pair).touch()
    LoadedPair(options).close()
    assert len(started) == 2


def test_known_files_and_broken_headers_start_no_child(children: Commands, options: Options) -> None:
    started = children("")
    embedded = MODELS_FOLDER / "embedded"
    trial.try_first(LocalPair("x", embedded / "target.gguf", embedded / "drafter.gguf", None, None), Options())
    Path(options.pair).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="broken GGUF file"):
        trial.try_first(LocalPair("x", Path(options.pair), None, None, None), options)
    assert not started


def test_a_file_that_an_engine_in_python_reads_starts_no_child(
    options: Options, children: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = children("")
    LoadedPair(replace(options, backend="torch")).close()
    monkeypatch.setattr(load_pair, "auto_tries_cuda", lambda _: True)
    monkeypatch.setattr(load_pair, "engine_status", lambda *_: SOUND)  # the CUDA engine's check passed
    monkeypatch.setattr(LoadedPair, "_load", lambda self: ("cuda", Mock(notices=[])))
    LoadedPair(replace(options, backend="auto")).close()
    assert not started


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "import os, sys; print('a.cpp:1: GGML_ASSERT(x) failed\\nmore', file=sys.stderr, flush=True); os.abort()",
            "(SIGABRT: a.cpp:1: GGML_ASSERT(x) failed)",
        ),
        ("import ctypes; ctypes.string_at(0)", "(SIGSEGV: "),
    ],
)
def test_a_file_that_crashes_its_child_is_refused_from_then_on(
    program: str, reason: str, options: Options, children: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    assert os.environ["GGML_NO_BACKTRACE"] == "1"  # else a failed assertion forks a debugger
    started = children(program)
    for _ in range(2):
        with pytest.raises(ModelError) as error:
            LoadedPair(options)
        line = str(error.value)
        assert line.startswith(f"{options.pair}: ")
        assert reason in line
        assert line.isprintable()
    assert len(started) == 1
    assert capfd.readouterr() == ("", "")


def test_a_file_that_hangs_is_refused(options: Options, children: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TIMEOUT_SECONDS", 0.5)
    started = children("import time; time.sleep(600)")
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(ModelError, match=r"target\.gguf: .*more than 1 s"):
            LoadedPair(options)
    assert len(started) == 1
    assert time.monotonic() - began < 20


def test_an_error_or_gpu_crash_of_the_child_does_not_blame_the_file(
    options: Options, children: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = children("raise ValueError")
    for _ in range(2):
        LoadedPair(options).close()
    assert len(started) == 2
    died = iter([0, 1])
    monkeypatch.setattr(gpu_watch, "count_crashes", lambda: next(died))
    children("import os; os.abort()")
    LoadedPair(options).close()


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, OutOfMemory), (signal.SIGTERM, LocaldflashError)])
def test_a_killed_child_does_not_blame_the_file(
    number: int, kind: type[LocaldflashError], options: Options, children: Commands
) -> None:
    started = children(f"import os; os.kill(os.getpid(), {int(number)})")
    for _ in range(2):
        with pytest.raises(kind, match=r"target\.gguf: "):
            LoadedPair(options)
    assert len(started) == 2


HANGS = """import os, time
from pathlib import Path
from localdflash.loading import child
child.begin()
Path(%r).write_text(str(os.getpid()))
time.sleep(600)"""


def test_a_child_ends_with_its_parent(options: Options, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    program = (
        "from pathlib import Path; from localdflash.models.load_options import Options\n"
        f"from localdflash.loading import trial; trial.PROGRAM = {HANGS % str(marker)!r}\n"
        f"trial.try_files([Path({options.pair!r})], Options({options.pair!r}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.DEVNULL)
    until(lambda: marker.exists() and marker.read_text())
    parent.kill()
    parent.wait()
    child = int(marker.read_text())
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
