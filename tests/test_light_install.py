"""An installation without extras: every command works on the CPU engine, or names the extra that it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import scripted
from localdflash.lab.scripts.support.terminal import READY, Terminal
from tests.support import daemons

BEGUN = "def add(first, second):\n    "
HIDE = """
from functools import partial
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_installed(name, *rest):
    return None if name.partition('.')[0] in {hidden} else find(name, *rest)
PathFinder.find_spec = partial(find_installed)  # no method, wherever it is put
"""
PYTHON = [sys.executable, "-P", "-c"]
PROGRAM = daemons.PROGRAM


def run(*arguments: str, stdin: str = "") -> str:
    """Return what a command prints in a process without the extras."""
    done = subprocess.run(
        [*PYTHON, PROGRAM, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def no_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the extras from every Python that starts, a daemon's included."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        HIDE.format(hidden=("llama_cpp", "matplotlib", "torch", "triton")), "utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "auto")


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Write a file whose function has no body yet."""
    file = tmp_path / "add.py"
    file.write_text(BEGUN, "utf-8")
    return file


def test_commands_without_a_pair_work() -> None:
    assert run("models", "list")
    assert run("models", "plan", "embedded")


def test_doctor_reports_missing_extras_without_a_failure() -> None:
    findings = {found["name"]: found for found in json.loads(run("doctor", "--full", "--json"))}
    assert [findings[name]["status"] for name in ("torch", "llama-cpp-python", "llama.cpp on GPUs")] == ["ok"] * 3
    assert "localdflash[llama]" in findings["llama-cpp-python"]["remedy"]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("chat", "-p", "hi", "--no-daemon", "--backend", "llama.cpp"), "llama"),
        (("chat", "-p", "hi", "--no-daemon", "--backend", "torch"), "torch"),
        (("train", "target", "FOLDER", "--minutes", "1"), "train"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(arguments: tuple[str, ...], extra: str) -> None:
    done = subprocess.run([*PYTHON, PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ModelError.exit_code
    (line,) = done.stderr.splitlines()
    assert f"pip install 'localdflash[{extra}]'" in line


@pytest.mark.system
def test_the_chat_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with daemons.short_home(monkeypatch), scripted(Answer.of("Hello.")):
        assert "Hello." in run("chat", "--plain", "--no-log", stdin="Hi\n")
        with Terminal.start([*PYTHON, PROGRAM, "chat"]) as terminal:
            terminal.wait_for(READY)
            terminal.type("Hi\r")
            terminal.wait_for("Hello.")


@pytest.mark.system
def test_a_completion_by_a_started_daemon(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemons.short_home(monkeypatch):
        assert run("complete", f"{begun}:2:5", "--rows", "fast").strip()


@pytest.mark.system
@pytest.mark.usefixtures("cpu_engine")
def test_a_completion_and_a_benchmark_without_a_daemon(begun: Path, tmp_path: Path) -> None:
    assert run("complete", f"{begun}:2:5", "--no-daemon").strip()
    run("bench", "--pair", "embedded", "--limit", "1", "--json", str(tmp_path / "speed.json"))
    assert json.loads((tmp_path / "speed.json").read_text())
