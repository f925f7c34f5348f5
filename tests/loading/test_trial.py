"""Files that are new here, loaded by a child first: what ends it or keeps it is one line, and is known from then on."""

import json
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

import psutil
import pytest

from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory, UsageError
from localdflash.base.machine import gpu_watch
from localdflash.loading import trial
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import MODELS_FOLDER, load_registry, local_files
from tests.security.gguf_mutations import build, parse
from tests.support.daemons import until

pytestmark = pytest.mark.tries_files
Commands = Callable[[str], list[list[str]]]


@pytest.fixture
def target(tiny_pair: Path, tmp_path: Path) -> Path:
    """A target that nobody has loaded here."""
    return Path(shutil.copy(tiny_pair / "target.gguf", tmp_path / "target.gguf"))


@pytest.fixture
def options(target: Path) -> Options:
    return Options(str(target), "llama.cpp", threads=1, context=64, rows="fast")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Has a child run another program; the commands that were started so far."""
    started: list[list[str]] = []
    real = subprocess.Popen

    def begin(program: str) -> list[list[str]]:
        def popen(command: list[str], **rest: Any) -> Any:
            started.append(command)
            return real([sys.executable, "-P", "-c", program, *command[4:]] if program else command, **rest)

        monkeypatch.setattr(subprocess, "Popen", popen)
        return started

    return begin


def files_of(options: Options) -> LocalPair:
    return local_files(load_registry().resolve(options.pair))


def test_a_new_file_is_tried_once(options: Options, children: Commands) -> None:
    started = children("")
    with LoadedPair(options) as loaded:
        assert loaded.context == 64
    assert len(started) == 1
    LoadedPair(options).close()
    assert len(started) == 1
    Path(options.pair).touch()
    LoadedPair(options).close()
    assert len(started) == 2


def test_what_the_child_measured_is_known_afterwards(
    options: Options, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        pytest.fail("it was measured twice")

    monkeypatch.setattr("localdflash.backends.llamacpp.certified.measure", measure)
    with LoadedPair(replace(options, rows="exact")):
        pass
    assert list((home / "cache" / "rows").iterdir())


def test_files_of_known_bytes_are_not_tried(children: Commands, tmp_path: Path) -> None:
    started = children("")
    embedded = MODELS_FOLDER / "embedded"
    trial.try_first(LocalPair("x", embedded / "target.gguf", embedded / "drafter.gguf", None, None, None), Options())
    assert not started


def test_llama_cpp_ends_the_child_alone(options: Options) -> None:
    """A vocabulary that is read as SentencePiece's has no tokens of single bytes, which C++ throws an exception for."""
    path = Path(options.pair)
    parsed = parse(path.read_bytes())
    pairs = [replace(one, items=(b"llama",)) if one.key == "tokenizer.ggml.model" else one for one in parsed.pairs]
    path.write_bytes(build(replace(parsed, pairs=tuple(pairs))))
    with pytest.raises(ModelError, match=r"it ended the process that tried to load it \(SIGABRT: "):
        LoadedPair(options)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; print('a.cpp:1: GGML_ASSERT(x) failed\\nmore', file=sys.stderr, flush=True); ABORT", "SIGABRT: "),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV: "),
    ],
)
def test_a_file_that_ends_its_child(
    program: str, said: str, options: Options, children: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    started = children(program.replace("ABORT", "import os; os.abort()"))
    for _ in range(2):
        with pytest.raises(ModelError) as error:
            LoadedPair(options)
        line = str(error.value)
        assert f"{options.pair}: it ended the process that tried to load it ({said}" in line
        assert line.isprintable()
    assert len(started) == 1, "the verdict was not kept"
    assert "GGML_ASSERT" not in program or "a.cpp:1: GGML_ASSERT(x) failed)" in line
    assert capfd.readouterr() == ("", "")


def test_a_file_that_hangs(options: Options, children: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0.5)
    started = children("import time; time.sleep(600)")
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(ModelError, match=r"target\.gguf: loading it took more than 1 s and was ended: "):
            LoadedPair(options)
    assert len(started) == 1
    assert time.monotonic() - began < 20


def test_another_error_of_the_child_leaves_the_load_to_this_process(options: Options, children: Commands) -> None:
    started = children("raise ValueError")
    for _ in range(2):
        LoadedPair(options).close()
    assert len(started) == 2


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, OutOfMemory), (signal.SIGTERM, LocaldflashError)])
def test_a_child_that_others_end_says_nothing_of_the_file(
    number: int, kind: type[LocaldflashError], options: Options, children: Commands
) -> None:
    started = children(f"import os; os.kill(os.getpid(), {int(number)})")
    for _ in range(2):
        with pytest.raises(kind, match=r"target\.gguf: "):
            LoadedPair(options)
    assert len(started) == 2


def test_a_gpu_that_ends_the_child_says_nothing_of_the_file(
    options: Options, children: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = iter([0, 1])
    monkeypatch.setattr(gpu_watch, "deaths", lambda: next(died))
    children("import os; os.abort()")
    LoadedPair(options).close()


def test_what_the_child_refuses_is_raised_here(options: Options) -> None:
    with pytest.raises(UsageError, match="was trained for 8 to 1024"):
        LoadedPair(replace(options, context=4096))


def test_a_header_that_is_refused_takes_no_child(options: Options, children: Commands) -> None:
    started = children("")
    Path(options.pair).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="broken GGUF file"):
        trial.try_first(LocalPair("x", Path(options.pair), None, None, None, None), options)
    assert not started


def test_progress_is_passed_on(options: Options, children: Commands) -> None:
    seen = []
    lines = [json.dumps({"done": 1, "total": 2}), json.dumps({"kind": ""})]
    children(f"print({lines[0]!r}); print({lines[1]!r})")
    trial.try_first(files_of(options), replace(options, progress=lambda *counts: seen.append(counts)))
    assert seen == [(1, 2)]


HANGS = """import os, threading, time
from pathlib import Path
from localdflash.loading import child
threading.Thread(target=child._leave_with_parent, daemon=True).start()
Path(%r).write_text(str(os.getpid()))
time.sleep(600)"""


def test_a_child_ends_with_its_parent(options: Options, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    program = (
        "from pathlib import Path; from localdflash.models.load_options import Options\n"
        f"from localdflash.loading import trial; trial.PROGRAM = {HANGS % str(marker)!r}\n"
        f"trial.tried([Path({options.pair!r})], Options({options.pair!r}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.DEVNULL)
    until(lambda: marker.exists() and marker.read_text())
    parent.kill()
    parent.wait()
    child = int(marker.read_text())
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_no_debugger_is_forked_where_an_assertion_fails() -> None:
    assert os.environ["GGML_NO_BACKTRACE"] == "1"
