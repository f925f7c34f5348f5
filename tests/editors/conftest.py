"""Fixtures: editors, if they are installed (a test run never fetches them), and an engine that knows one text."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from localdflash.base.files import paths
from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.editors.nvim_scene import EditorScene
from localdflash.lab.scripts.support import instant_engine
from tests.support import daemons

Begin = Callable[..., AbstractContextManager[EditorScene]]


@pytest.fixture(autouse=True)
def _no_certifying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_MODEL_ROWS", "fast")  # it takes longer than these tests


def installed(name: str, suite: str = fetch.NEWEST) -> Path:
    """Return the program of an editor, or skip the test."""
    found = fetch.find_installed(name, suite)
    if found is None:
        pytest.skip(f"no {name} {suite} here: make test-editors fetches it")
    return found


@pytest.fixture(scope="session")
def nvim() -> Path:
    """Return Neovim 0.12 or newer."""
    return installed("neovim", fetch.NEWEST)


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """See `daemons.short_home`."""
    with daemons.short_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def engine(short_home: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Run an engine that completes the text `KNOWN` of the test's module."""
    (short_home / "known.py").write_text(request.module.KNOWN, "utf-8")
    command = [*instant_engine.COMMAND, str(short_home / "known.py")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        daemons.until(lambda: paths.daemon_socket().exists() or process.poll() is not None)
        yield
        process.kill()


@pytest.fixture
def scene(nvim: Path, tmp_path: Path) -> Begin:
    """Yield a scene with an engine that runs in this process."""
    return lambda *texts, **settings: nvim_scene.scene(nvim, tmp_path, *texts, **settings)


@pytest.fixture
def add(scene: Begin) -> Iterator[EditorScene]:
    """Begin one that knows nvim_scene.ADD, with an empty file open in insert mode."""
    with scene(nvim_scene.ADD) as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.until_ghost("def add(first, second):\n" + nvim_scene.BODY)
        yield begun


def type_def(scene: EditorScene) -> None:
    """Type `def` into a new file and wait until the rest of the function is suggested."""
    scene.open("add.py")
    scene.editor.keys("i")
    scene.editor.type("def")
    scene.editor.until_ghost(" add(first, second):\n" + nvim_scene.BODY)
