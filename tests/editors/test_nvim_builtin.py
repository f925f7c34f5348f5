"""Neovim's own inline completion, with nothing of ours but lsp/localdflash.lua."""

from pathlib import Path

import pytest

from localdflash.lab.scripts.editors import nvim_scene
from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY

pytestmark = pytest.mark.editors
SETUP = """
vim.lsp.config('localdflash', {settings})
vim.lsp.enable('localdflash')
vim.lsp.inline_completion.enable()
vim.keymap.set('i', '<Tab>', function()
  if not vim.lsp.inline_completion.get() then return '<Tab>' end
end, { expr = true })
"""


def test_ghost_text_and_accepting(nvim: Path, tmp_path: Path) -> None:
    with nvim_scene.scene(nvim, tmp_path, ADD, setup=SETUP) as begun:
        begun.open("add.py")
        begun.editor.keys("i")
        begun.editor.type("def")
        begun.editor.until_ghost(" add(first, second):\n" + BODY)
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == "def add(first, second):\n" + BODY)
        begun.until_event("accept")
        assert begun.events("initialize")[0]["options"] is None
