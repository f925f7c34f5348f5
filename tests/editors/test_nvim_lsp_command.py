"""Neovim's own `:lsp` with the plugin's server: what it stops stays stopped, what it starts again comes back."""

import pytest

from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY, SETUP, EditorScene
from tests.editors.conftest import Begin, servers

pytestmark = pytest.mark.editors
WHOLE = "def add(first, second):\n" + BODY
OFF = "localdflash off"
STATUS = "return require('localdflash').status()"


def clients(scene: EditorScene) -> int:
    return int(scene.editor.lua("return #vim.lsp.get_clients({bufnr = 0})"))


def stays_away(scene: EditorScene) -> None:
    """Check that nothing that otherwise starts a server does."""
    scene.editor.until(lambda: not servers(scene))
    scene.editor.until(lambda: scene.editor.lua(STATUS) == OFF)
    assert scene.editor.ghost() == ""
    scene.editor.keys("<Esc>")
    (scene.folder / "other.py").write_text("")
    scene.editor.command(f"edit {scene.folder / 'other.py'}")
    scene.editor.command("buffer add.py")
    scene.editor.keys("A")
    scene.editor.type("d")
    assert clients(scene) == 0
    assert not servers(scene)
    assert scene.editor.messages() == []


@pytest.mark.parametrize("command", ["lsp stop", "lsp disable localdflash"])
def test_what_is_stopped_stays_away_until_it_is_turned_on(add: EditorScene, command: str) -> None:
    add.editor.command(command)
    stays_away(add)
    add.editor.command("Localdflash enable")
    add.editor.until_attached()
    add.editor.type("ef")
    add.editor.until_ghost(WHOLE[3:])


def test_both_ways_at_once_start_one_server(scene: Begin) -> None:
    enabled = "vim.lsp.config('localdflash', { cmd = {settings}.cmd }); vim.lsp.enable('localdflash')"
    with scene(ADD, setup=f"{SETUP}\n{enabled}") as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.type("def")
        begun.editor.until_ghost(WHOLE[3:])
        assert len(begun.events("initialize")) == 1
        assert len(servers(begun)) == 1
