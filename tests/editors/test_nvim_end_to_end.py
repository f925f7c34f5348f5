"""Neovim with the plugin, `localdflash lsp` and a scripted engine."""

import sys
from pathlib import Path

import pytest

from localdflash.lab.scripts.editors import nvim_scene
from tests.support import daemons

pytestmark = [pytest.mark.transport, pytest.mark.editors, pytest.mark.filterwarnings(daemons.DROPPED_SOCKET)]
KNOWN = nvim_scene.ADD
SERVER = [sys.executable, "-P", "-c", daemons.PROGRAM, "lsp"]


@pytest.mark.usefixtures("engine")
def test_typed_and_accepted_with_the_real_server(nvim: Path, tmp_path: Path) -> None:
    with nvim_scene.scene(nvim, tmp_path, cmd=SERVER) as scene:
        scene.open("add.py")
        scene.editor.keys("i")
        editor = scene.editor
        editor.type("def add(first")
        editor.until(lambda: editor.ghost().startswith(", second):"), "a suggestion")
        begun = len(editor.screen.pictures)
        editor.type(", second):")
        editor.keys("<CR>")
        editor.until(lambda: editor.ghost().startswith("total = "), "a suggestion")
        assert all(row[0].startswith("  1 def add(first, second):") for row in editor.screen.pictures[begun:])
        editor.keys("<C-Right>")
        editor.until(lambda: editor.text().endswith("    total"))
        editor.keys("<C-End>")
        editor.until(lambda: editor.text().endswith("    total = first + second"))
        editor.keys("<Esc>u")
        assert editor.text() == "def add(first, second):\n    total"
        line = "return require('localdflash').status()"
        editor.until(lambda: editor.lua(line).startswith("oracle"), "the status")
        assert editor.messages() == []
