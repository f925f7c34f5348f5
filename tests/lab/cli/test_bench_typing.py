"""`bench typing` and `bench infill` from the command line: real processes, small inputs."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localdflash.lab.cli.bench_output import BenchProgress
from localdflash.lab.scripts.support import instant_engine
from tests.lab.bench.test_infill import LINE
from tests.support import daemons

WHOLE = "import os\n\n\ndef size(path):\n    found = os.stat(path)\n    return found.st_size\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "size.py").write_text(WHOLE)
    return tmp_path / "size.py"


@pytest.fixture
def oracle(short_home: Path, file: Path, root: Path) -> Iterator[Path]:
    """Start an engine that knows the file; yield the file."""
    command = [*instant_engine.COMMAND, str(file)]
    engine = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        daemons.until(lambda: engine.poll() is not None or daemons.is_ready())
        yield file
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.system
@pytest.mark.filterwarnings(daemons.DROPPED_SOCKET)
def test_typing_with_an_engine_that_knows_the_text(oracle: Path, run: Callable[..., Any]) -> None:
    result = oracle.with_suffix(".json")
    picture = oracle.with_suffix(".svg")
    arguments = ("--as", "neovim", "--speed", 2, "--keys", 60, "--json", result, "--picture", picture)
    done = run("bench", "typing", f"{oracle}:5", *arguments)
    assert done.code == 0, done.err
    report = json.loads(result.read_text())
    assert report["overall"]["keystrokes_saved"] > 0.5
    assert (report["overall"]["stale"], report["overall"]["errors"]) == (0, 0)
    assert (report["style"], report["engine"]["pair"]) == ("neovim", "oracle")
    assert [line.split()[0] for line in done.out.splitlines()[:3]] == ["FILE", "size.py", "overall"]
    assert "stale" in done.out
    assert picture.stat().st_size > 1000


@pytest.mark.system
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.filterwarnings(daemons.DROPPED_SOCKET)
def test_ctrl_c_keeps_the_files_that_were_typed(
    oracle: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, other = oracle.with_suffix(".json"), oracle.with_name("other.py")
    other.write_text(WHOLE)
    monkeypatch.setattr(BenchProgress, "count", lambda *_: signal.raise_signal(signal.SIGINT))
    arguments = ("--speed", 2, "--keys", 60, "--json", result, "--picture", oracle.with_suffix(".svg"))
    done = run("bench", "typing", f"{oracle}:5", f"{other}:5", *arguments)
    assert done.code == 130, done.err
    report = json.loads(result.read_text())
    assert (report["interrupted"], list(report["files"])) == (True, ["size.py"])
    assert report["overall"]["keystrokes_saved"] > 0.5
    assert [line.split()[0] for line in done.out.splitlines()[:3]] == ["FILE", "size.py", "overall"]
    assert oracle.with_suffix(".svg").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ("spede",),
        ("typing", "--picture", "a.gif"),
        ("typing", "missing.py"),
        ("infill", "missing.jsonl"),
        ("server", "--keys", "3"),
        ("size.py",),
    ],
)
def test_invalid_options_are_refused_before_anything_starts(
    arguments: tuple[str, ...], fails: Callable[..., str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    fails(2, "bench", *arguments)


@pytest.mark.system
@pytest.mark.filterwarnings(daemons.DROPPED_SOCKET)
def test_the_embedded_pair_is_not_replaced_while_it_is_measured(
    short_home: Path, file: Path, run: Callable[..., Any], tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALDFLASH_COMPLETION_PAIR", tiny[1])
    result = file.with_suffix(".json")
    done = run("bench", "typing", file, "--pair", "embedded", "--speed", 10, "--keys", 10, "--json", result)
    assert done.code == 0, done.err
    assert json.loads(result.read_text())["engine"]["pair"] == "embedded"


@pytest.mark.system
@pytest.mark.filterwarnings(daemons.DROPPED_SOCKET)
@pytest.mark.usefixtures("short_home")
def test_infilling(run: Callable[..., Any], tiny: tuple[str, ...], tmp_path: Path) -> None:
    tasks, result = tmp_path / "tasks.jsonl", tmp_path / "result.json"
    tasks.write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, "test": "def check(f): pass\n", "suffix": "'''"}))
    done = run("bench", "infill", tasks, "--json", result, *tiny)
    assert done.code == 0, done.err
    assert f"The tests of {tasks}" in done.err
    report = json.loads(result.read_text())
    assert (report["tasks"], report["engine"]["pair"]) == (2, str(tiny[1]))
    assert sum(report["outcomes"].values()) == 2
    assert report["tokens_per_second"] > 0
    assert "pass@1" in done.out
