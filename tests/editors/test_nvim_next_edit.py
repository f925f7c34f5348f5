"""Next edits in a real Neovim: drawing and keys."""

from collections.abc import Iterator
from typing import Any

import pytest

from localdflash.lab.scripts.editors.nvim_scene import EditorScene
from tests.editors.conftest import Begin

pytestmark = pytest.mark.editors

TEXT = "def f(cnt):\n    x = 1\n    return count + x\n"
ACCEPTED = TEXT.replace("count", "cnt").rstrip("\n")
MARKS = """
local space = vim.api.nvim_get_namespaces()['localdflash.next_edit']
local found = {}
for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { details = true })) do
  local text = mark[4].virt_text and mark[4].virt_text[1][1] or ''
  found[#found + 1] = { mark[2], mark[3], mark[4].end_col or mark[3], text }
end
return found
"""


@pytest.fixture
def proposed(scene: Begin) -> Iterator[EditorScene]:
    """Propose to rename the use of a parameter; the cursor is in the first line, in normal mode."""
    with scene() as begun:
        begun.open("a.py", TEXT)
        propose(begun)
        yield begun


def propose(scene: EditorScene, **about: Any) -> None:
    """Have the server propose `cnt` for `count`."""
    scene.tell("test/next_edit", **({"line": 2, "start": 11, "end": 16, "text": "cnt"} | about))
    scene.editor.lua("vim.wait(20)")


def marks(scene: EditorScene) -> list[list[Any]]:
    """Return the drawn marks: row, first and last column, text."""
    return list(scene.editor.lua(MARKS))


def test_it_is_drawn_at_its_place(proposed: EditorScene) -> None:
    proposed.editor.until(lambda: marks(proposed) == [[2, 11, 16, ""], [2, 16, 16, "cnt"]], "the edit")
    proposed.editor.until(lambda: proposed.editor.screen.rows()[2] == "  3     return countcnt + x")
    assert proposed.editor.text() == TEXT.rstrip("\n")


@pytest.mark.parametrize("mode", ["", "i"])
def test_tab_goes_there_and_tab_accepts(proposed: EditorScene, mode: str) -> None:
    if mode:
        proposed.editor.keys(mode)
    proposed.editor.until(lambda: marks(proposed))
    proposed.editor.keys("<Tab>")
    assert proposed.editor.lua("return vim.api.nvim_win_get_cursor(0)") == [3, 11]
    assert proposed.editor.text() == TEXT.rstrip("\n")
    proposed.editor.keys("<Tab>")
    proposed.editor.until(lambda: proposed.editor.text() == ACCEPTED, "the edit")
    assert marks(proposed) == []
    proposed.editor.keys("<Esc>u")
    assert proposed.editor.text() == TEXT.rstrip("\n")


def test_in_a_buffer_without_a_name(scene: Begin) -> None:
    with scene() as begun:
        begun.editor.keys("i")
        begun.editor.until_attached()
        begun.editor.type("count = 1\nprint(cnt)")
        begun.editor.keys("<Esc>")
        propose(begun, line=1, start=6, end=9, text="count")
        assert marks(begun) == [[1, 6, 9, ""], [1, 9, 9, "count"]]
        assert len(begun.editor.lua("return vim.api.nvim_list_bufs()")) == 1
        begun.editor.keys("gg<Tab><Tab>")
        begun.editor.until(lambda: begun.editor.text() == "count = 1\nprint(count)")


@pytest.mark.parametrize("off", ["let b:localdflash_enabled = v:false", "set filetype=text"])
def test_it_goes_when_completions_are_turned_off(scene: Begin, off: str) -> None:
    with scene(filetypes={"text": False}) as begun:
        begun.open("a.py", TEXT)
        propose(begun)
        begun.editor.until(lambda: marks(begun))
        begun.editor.keys(f":{off}<CR>")
        begun.editor.until(lambda: not marks(begun), "its end")


@pytest.mark.parametrize("mode", ["", "i"])
def test_an_edit_of_several_lines(scene: Begin, mode: str) -> None:
    with scene() as begun:
        begun.open("a.py", TEXT)
        begun.editor.keys(mode)
        propose(begun, line=0, start=11, end=11, text="\n    y = 2\n    z = 3")
        begun.editor.until(
            lambda: begun.editor.screen.rows()[1:4] == ["        y = 2", "        z = 3", "  2     x = 1"]
        )
        begun.editor.keys("<Tab><Tab>")
        begun.editor.until(lambda: begun.editor.text() == TEXT.rstrip("\n").replace(":\n", ":\n    y = 2\n    z = 3\n"))
        assert begun.editor.lua("return vim.api.nvim_win_get_cursor(0)")[0] == 3
        begun.editor.keys("<Esc>u")
        propose(begun, line=0, last=2, start=0, end=11, text="def g():\n    return 1 +")
        begun.editor.until(lambda: marks(begun))
        begun.editor.keys("gg0<Tab>")
        begun.editor.until(lambda: begun.editor.text() == "def g():\n    return 1 +count + x")


def test_escape_sends_it_away_and_tells_the_server(proposed: EditorScene) -> None:
    proposed.editor.until(lambda: marks(proposed))
    proposed.editor.keys("<Esc>")
    assert marks(proposed) == []
    proposed.until_event("didRejectNextEdit")
    proposed.editor.keys("<Tab>")
    assert proposed.editor.text() == TEXT.rstrip("\n")


def test_the_keys_are_those_of_before_when_it_is_gone(scene: Begin) -> None:
    with scene() as begun:
        begun.open("a.py", TEXT)
        begun.editor.lua("vim.keymap.set('n', '<Tab>', function() mine = true end, { buffer = true })")
        propose(begun)
        begun.editor.until(lambda: marks(begun))
        begun.editor.keys("<Tab><Tab>")
        begun.editor.until(lambda: begun.editor.text() == ACCEPTED)
        assert begun.editor.lua("return mine") is None
        begun.editor.keys("<Tab>")
        assert begun.editor.lua("return mine") is True
        begun.editor.keys("i<Tab>")
        begun.editor.until(lambda: begun.editor.text() != ACCEPTED, "a tab")


def test_a_suggestion_comes_first(scene: Begin) -> None:
    with scene("x = [1, 2]\n" + TEXT) as begun:
        begun.open("a.py", "x = [\n" + TEXT)
        begun.editor.keys("A")
        begun.editor.until_ghost("1, 2]")
        propose(begun, line=3)
        assert marks(begun) == []
        begun.editor.keys("<Esc>")
        begun.editor.until(lambda: marks(begun), "the edit once the suggestion is gone")
        begun.editor.keys("A")
        begun.editor.until_ghost("1, 2]")
        begun.editor.until(lambda: not marks(begun), "only the suggestion")
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text().startswith("x = [1, 2]\n"), "the suggestion's Tab")


def test_any_change_takes_it_back(proposed: EditorScene) -> None:
    proposed.editor.until(lambda: marks(proposed))
    proposed.editor.keys("x")
    proposed.editor.until(lambda: not marks(proposed), "its end")
    proposed.editor.keys("u")
    proposed.editor.lua("vim.wait(20)")
    assert marks(proposed) == []
