"""Running commands in this process, and what a failure has to look like."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from localdflash.cli import main
from localdflash.server import spawn
from tests.support import daemons

START = spawn._spawn
CODE = 'def add(first, second):\n    """Return the sum."""\n    \n\nprint(add(1, 2))\n'
FINISHES = ("line", "statement", "block", "suffix", "repeat", "stop", "length")  # of a completion


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture(autouse=True)
def _no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing starts a daemon that nobody would end: a test that needs one takes `short_home`."""

    def refuse(*_: object) -> NoReturn:
        pytest.fail("a test started a daemon: add --no-daemon, or take short_home")

    monkeypatch.setattr(spawn, "_spawn", refuse)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `localdflash ARGUMENTS`."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def fails(run: Command) -> Callable[..., str]:
    """Runs a command that has to end with this code, nothing on stdout and one line on stderr; that line."""

    def call(code: int, *arguments: object) -> str:
        done = run(*arguments)
        assert (done.code, done.out) == (code, ""), done
        assert done.err.startswith("localdflash: ")
        assert done.err.endswith("\n")
        assert done.err.count("\n") == 1, done.err
        assert "internal error" not in done.err
        return done.err.removeprefix("localdflash: ").rstrip("\n")

    return call


@pytest.fixture
def tiny(tiny_pair: Path) -> tuple[str, ...]:
    """Options that run the tiny pair on one thread."""
    return ("--pair", str(tiny_pair / "target.gguf"), "--threads", "1")


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """See `daemons.short_home`."""
    monkeypatch.setattr(spawn, "_spawn", START)
    with daemons.short_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file whose third line waits for a body."""
    path = tmp_path / "app.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    """Far more than 1 024 tokens on both sides of line 1 001."""
    path = tmp_path / "long.py"
    path.write_text("".join(f"value_{i} = {i}\n" for i in range(2000)))
    return path


@pytest.fixture
def complete(run: Command, tiny: tuple[str, ...]) -> Command:
    """Runs `localdflash complete` with the tiny pair, in this process."""
    return lambda *arguments: run("complete", "--no-daemon", *arguments, *tiny)


@pytest.fixture
def chat(run: Command, tiny: tuple[str, ...]) -> Command:
    """Runs `localdflash chat` with the tiny pair, in this process."""
    return lambda *arguments: run("chat", "--no-daemon", *tiny, *arguments)
