"""The editors, if they are installed (a test run never fetches them), and an engine that knows some texts."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from localdflash.base.files import paths
from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.editors.nvim_scene import SERVER, EditorScene
from localdflash.lab.scripts.support import instant_engine
from tests.support import daemons

Begin = Callable[..., AbstractContextManager[EditorScene]]


@contextmanager
def instant(folder: Path, texts: dict[str, str]) -> Iterator[None]:
    """Run an engine that knows these texts, by file names."""
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    command = [*instant_engine.COMMAND, *(str(folder / name) for name in texts)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        daemons.until(lambda: paths.engine_socket().exists() or process.poll() is not None)
        yield
        process.kill()


def servers(scene: EditorScene) -> list[psutil.Process]:
    """Return the server processes of a Neovim."""
    found = []
    for process in psutil.Process(scene.editor.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found += [process] if str(SERVER) in process.cmdline() else []
    return found


@pytest.fixture(autouse=True)
def _no_certifying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_MODEL_ROWS", "fast")  # it takes longer than these tests


@pytest.fixture(scope="session")
def nvim() -> Path:
    """Neovim 0.12 or newer."""
    return _found(fetch.NEWEST)


@pytest.fixture(scope="session")
def old_nvim() -> Path:
    """Neovim 0.10, the oldest that the plugin works with."""
    return _found("trixie")


@pytest.fixture
def scene(nvim: Path, tmp_path: Path) -> Begin:
    """Begin a Neovim with the plugin and a scripted server."""
    return lambda *texts, **settings: nvim_scene.scene(nvim, tmp_path, *texts, **settings)


@pytest.fixture
def add(scene: Begin) -> Iterator[EditorScene]:
    """Begin one that knows nvim_scene.ADD, with an empty file open in insert mode."""
    with scene(nvim_scene.ADD) as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.until_ghost("def add(first, second):\n" + nvim_scene.BODY)
        yield begun


def _found(suite: str) -> Path:
    found = fetch.installed("neovim", suite)
    if found is None:
        pytest.skip(f"no Neovim ({suite}) here: make test-editors fetches it")
    return found
