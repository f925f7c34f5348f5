"""PyTorch is large and slow to import: what a user types does without it, as do editors and the engines they ask."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.lab.scripts.support import instant_engine
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import scripted
from localdflash.lab.scripts.support.terminal import READY, Terminal
from tests.lsp.wire import asking, notification, opening, serving
from tests.support import daemons

CODE = "def add(first, second):\n    return first + second\n"
BEGUN = "def add(first, second):\n    "
GUARD = """
import os, sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.partition('.')[0] == 'torch':
            os.write(2, b'torch is imported')
            os._exit(99)
sys.meta_path.insert(0, NoTorch())
"""
PYTHON = [sys.executable, "-P", "-c"]
PROGRAM = GUARD + daemons.PROGRAM


def run(*arguments: str, said: str = "") -> str:
    """What a command prints in a process that ends where it imports torch."""
    done = subprocess.run(
        [*PYTHON, PROGRAM, *arguments], input=said, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A file whose function has no body yet."""
    file = tmp_path / "add.py"
    file.write_text(BEGUN, "utf-8")
    return file


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that knows how the file goes on."""
    known = tmp_path / "known.py"
    known.write_text(CODE, "utf-8")
    with (
        daemons.short_home(monkeypatch),
        subprocess.Popen([*instant_engine.COMMAND, str(known)], stderr=subprocess.DEVNULL) as engine,
    ):
        daemons.until(daemons.is_ready)
        yield
        engine.kill()


def test_the_guard_guards() -> None:
    done = subprocess.run([*PYTHON, GUARD + "import torch"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (99, "torch is imported")


def test_commands() -> None:
    assert run("models", "list")
    assert run("models", "plan", "embedded")


@pytest.mark.system
def test_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    with daemons.short_home(monkeypatch), scripted(Answer.of("Hello.")):
        assert "Hello." in run("chat", "--plain", "--no-log", said="Hi\n")
        with Terminal.start([*PYTHON, PROGRAM, "chat"]) as terminal:
            terminal.wait_for(READY)
            terminal.type("Hi\r")
            terminal.wait_for("Hello.")


@pytest.mark.system
def test_a_completion_by_the_engine_that_it_starts(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemons.short_home(monkeypatch):
        assert run("complete", f"{begun}:2:5", "--rows", "fast").strip()


@pytest.mark.system
@pytest.mark.usefixtures("oracle")
def test_the_language_server(begun: Path) -> None:
    with serving(program=PROGRAM) as server:
        server.begin()
        server.send(notification("textDocument/didOpen", opening(begun.as_uri(), BEGUN)))
        answer = server.ask("textDocument/inlineCompletion", asking(begun.as_uri(), 1, 4, trigger=1))
        (item,) = answer["result"]["items"]
        assert item["insertText"].strip() == "return first + second"


@pytest.mark.system
@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize("backend", ["cpu", "llama.cpp"])
def test_a_completion_in_the_process_itself(backend: str, begun: Path) -> None:
    assert run("complete", f"{begun}:2:5", "--no-daemon", "--backend", backend, "--rows", "fast").strip()
