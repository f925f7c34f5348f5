"""What the tests of the editors share: the editors, which a plain test run takes where they are and never fetches."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.editors.nvim_scene import EditorScene


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
def scene(nvim: Path, tmp_path: Path) -> Callable[..., AbstractContextManager[EditorScene]]:
    """Begin a Neovim with the plugin and a scripted server."""
    return lambda *texts, **settings: nvim_scene.scene(nvim, tmp_path, *texts, **settings)


@pytest.fixture
def add(scene: Callable[..., AbstractContextManager[EditorScene]]) -> Iterator[EditorScene]:
    """One that knows how nvim_scene.ADD goes on, with an empty file open in insert mode."""
    with scene(nvim_scene.ADD) as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.until_ghost("def add(first, second):\n" + nvim_scene.BODY)
        yield begun


def _found(suite: str) -> Path:
    found = fetch.installed(suite)
    if found is None:
        pytest.skip(f"no Neovim ({suite}) here: make test-editors fetches it")
    return found
