"""Neovim's own `:lsp` with the plugin's server: what it stops stays stopped, what it starts again comes back."""

import pytest

from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY, SETUP
from tests.editors.conftest import Begin, servers

pytestmark = pytest.mark.editors
WHOLE = "def add(first, second):\n" + BODY
OFF = "localdflash off"
STATUS = "return require('localdflash').status()"


def test_both_ways_at_once_start_one_server(scene: Begin) -> None:
    enabled = "vim.lsp.config('localdflash', { cmd = {settings}.cmd }); vim.lsp.enable('localdflash')"
    with scene(ADD, setup=f"{SETUP}\n{enabled}") as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.type("def")
        begun.editor.until_ghost(WHOLE[3:])
        assert len(begun.events("initialize")) == 1
        assert len(servers(begun)) == 1
