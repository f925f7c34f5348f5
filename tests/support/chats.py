"""`localdflash chat` on terminals, with its own home and folder and a scripted engine."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from localdflash.lab.scripts.support import terminal
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import ScriptedEngine, script, scripted
from localdflash.lab.scripts.support.terminal import READY, Terminal
from tests.support import daemons

# Such a chat starts a scripted engine; SCRIPT in its environment contains the answers.
_ENGINE = "from localdflash.lab.scripts.support.scripted_engine import main; main()"
SCRIPTED = f"from localdflash.server import spawn; spawn.PROGRAM = {_ENGINE!r};"


@dataclass
class Scene:
    """`home` is LOCALDFLASH_HOME, `folder` where the chat is started."""

    home: Path
    folder: Path
    engine: ScriptedEngine
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self, *arguments: str, ready: bool = True, env: Mapping[str, str] | None = None, **rest: Any) -> Terminal:
        """Start a chat on a new terminal; with `ready`, return when the chat accepts keys."""
        env = {"LOCALDFLASH_HOME": str(self.home), **(env or {})}
        begun = self._stack.enter_context(terminal.chat(*arguments, env=env, cwd=str(self.folder), **rest))
        if ready:
            begun.wait_for(READY)
        return begun

    def answers(self, *answers: Answer) -> None:
        """Set the engine's next answers."""
        self.engine.answers[:] = answers

    def engines(self) -> list[psutil.Process]:
        """Return the engines that a chat has started."""
        return daemons.daemons(self.home)


def ask(on: Terminal, text: str, until: str | Callable[[str], object] = "") -> str:
    """Send a message; return the screen when it contains `until`."""
    on.type(text)
    on.wait_for(text[-20:])
    on.press("enter")
    on.wait_for(until or READY)
    return on.text


@contextmanager
def scene(monkeypatch: pytest.MonkeyPatch, *answers: Answer, **about: Any) -> Iterator[Scene]:
    """Yield a scene with an engine that runs in this process."""
    with daemons.short_home(monkeypatch) as home, ExitStack() as stack:
        engine = stack.enter_context(scripted(*answers, **about))
        yield Scene(home, _folder(home), engine, stack.enter_context(ExitStack()))


@contextmanager
def scene_without_engine(monkeypatch: pytest.MonkeyPatch, *answers: Answer, **rest: Any) -> Iterator[Scene]:
    """Yield a scene in which a chat with `program=SCRIPTED` starts an engine with scripted answers."""
    with daemons.short_home(monkeypatch) as home, ExitStack() as stack:
        monkeypatch.setenv("SCRIPT", script(*answers, **rest))
        yield Scene(home, _folder(home), ScriptedEngine(), stack.enter_context(ExitStack()))


def _folder(home: Path) -> Path:
    folder = home / "project"
    folder.mkdir()
    return folder
