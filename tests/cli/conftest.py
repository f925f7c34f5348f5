"""Running commands in this process, and what a failure has to look like."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from localdflash.cli import main
from localdflash.server import spawn
from tests.support import daemons

START = spawn._spawn


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
