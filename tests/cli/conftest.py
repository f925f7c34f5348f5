"""Fixtures that run commands in this process and check their errors."""

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from localdflash.base.files import paths
from localdflash.cli import main
from localdflash.models.load_options import Options
from localdflash.server import private, spawn
from localdflash.server.address import Address
from localdflash.server.api.metrics import Metrics
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.worker import PairWorker
from tests.support import daemons
from tests.support.served import serving

START = spawn._spawn
CODE = 'def add(first, second):\n    """Return the sum."""\n    \n\nprint(add(1, 2))\n'
SLOW_DAEMON = f"from localdflash.server import spawn; spawn.PROGRAM = {daemons.SLOW + daemons.PROGRAM!r};"
FINISHES = ("line", "statement", "block", "suffix", "repeat", "stop", "length")  # of a completion


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture(autouse=True)
def _no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a test starts a daemon without `short_home`, which ends it."""

    def refuse(*_: object) -> NoReturn:
        pytest.fail("a test started a daemon: add --no-daemon, or use short_home")

    monkeypatch.setattr(spawn, "_spawn", refuse)


class InProcessEngine:
    """Private engine on threads of this process, instead of a child process."""

    def __init__(self, spec: EngineSpec, path: Path) -> None:
        options: dict[str, Any] = {**spec.options, "pair": spec.pair}
        draft = not options.pop("no_draft", False)
        first = PairWorker(Options(**options, draft=draft), 64_000_000, 4, lambda *_: None)
        engines = Engines(first, [spec.role or "chat"])
        self._stack = ExitStack()
        self._stack.callback(engines.close)
        try:
            engines.start()
            asyncio.run(engines.ready(spec.role or "chat"))
            app = create_app(engines, Metrics())
            listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            self._stack.callback(path.unlink)
            listener.listen()
            self._stack.enter_context(serving(app, listener))
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(autouse=True)
def _in_process_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start no process for `--no-daemon` and `--no-draft`, except in tests marked `system`."""
    if request.node.get_closest_marker("system"):
        yield
        return

    def start(
        spec: EngineSpec, path: Path, _on_stage: object, say: Callable[[str], None] | None = None
    ) -> InProcessEngine:
        engine = InProcessEngine(spec, path)
        if say and (notice := Client(Address(path)).get("/ps").get("notice")):
            say(notice)
        return engine

    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as folder:
        monkeypatch.setattr(paths, "private_socket", lambda: Path(folder) / "private.sock")
        monkeypatch.setattr(private, "start", start)
        monkeypatch.setattr(private, "end", lambda engine, _path: engine.close())
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `localdflash ARGUMENTS`."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def fails(run: Command) -> Callable[..., str]:
    """Return a function that runs a failing command, checks its exit code and its one line, and returns the line."""

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
    """Return options that run the tiny pair on one thread."""
    return ("--pair", str(tiny_pair / "target.gguf"), "--threads", "1")


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """See `daemons.short_home`."""
    monkeypatch.setattr(spawn, "_spawn", START)
    with daemons.short_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a function whose body is missing in line 3."""
    path = tmp_path / "app.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    """Return a file with far more than 1024 tokens on both sides of line 1001."""
    path = tmp_path / "long.py"
    path.write_text("".join(f"value_{i} = {i}\n" for i in range(2000)))
    return path


@pytest.fixture
def complete(run: Command, tiny: tuple[str, ...]) -> Command:
    """Return a function that runs `localdflash complete` with the tiny pair, in this process."""
    return lambda *arguments: run("complete", "--no-daemon", *arguments, *tiny)


@pytest.fixture
def chat(run: Command, tiny: tuple[str, ...]) -> Command:
    """Return a function that runs `localdflash chat` with the tiny pair, in this process."""
    return lambda *arguments: run("chat", "--no-daemon", *tiny, *arguments)
