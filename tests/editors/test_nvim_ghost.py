"""Ghost text in a real Neovim: when it appears, stays and disappears."""

import pytest

from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY, EditorScene
from tests.editors.conftest import Begin

pytestmark = pytest.mark.editors
UTF_16 = """
local make = vim.lsp.protocol.make_client_capabilities
vim.lsp.protocol.make_client_capabilities = function()
  local made = make()
  made.general.positionEncodings = {'utf-16'}
  return made
end
require('localdflash').setup({settings})
"""


@pytest.mark.parametrize("delay", [0, 30])
def test_it_stays_while_what_is_typed_agrees(add: EditorScene, delay: int) -> None:
    add.editor.type("d")
    add.editor.until_ghost("ef add(first, second):\n" + BODY)
    add.tell("test/set", delay_ms=delay)
    begun = len(add.editor.screen.pictures)
    add.editor.type("ef add(first, second):\ntotal = first + ")  # what Neovim indents agrees too
    add.editor.until_ghost("second\n    return total")
    whole = ["  1 def add(first, second):", "        total = first + second", "        return total"]
    for picture in add.editor.screen.pictures[begun:]:
        assert [row.replace("  2 ", "    ").replace("  3 ", "    ") for row in picture[:3]] == whole


def test_it_goes_at_once_when_another_key_is_typed(add: EditorScene) -> None:
    add.editor.type("d")
    add.editor.until_ghost("ef add(first, second):\n" + BODY)
    begun = len(add.editor.screen.pictures)
    with add.answers_held():
        add.editor.keys("x")
        assert add.editor.ghost() == ""
        add.editor.until(lambda: add.editor.screen.rows()[0] == "  1 dx")
    for picture in add.editor.screen.pictures[begun:]:
        assert not any("dx" in row and "ef add" in row for row in picture)
    assert add.until_event("didRejectCompletion")["text"].startswith("def add")


def test_an_answer_for_an_earlier_text_is_never_shown(add: EditorScene) -> None:
    add.editor.type("x")
    asked, begun = len(add.events("request")), len(add.editor.screen.pictures)
    with add.answers_held():
        add.editor.keys("<BS>")
        add.editor.until(lambda: len(add.events("request")) > asked)  # a suggestion would be its answer
        add.editor.type("y")
    assert add.editor.ghost() == ""
    assert not any("add(" in row for picture in add.editor.screen.pictures[begun:] for row in picture)


def test_it_grows_in_place_when_the_server_pushes_more(scene: Begin) -> None:
    with scene("def add(first, second)\n") as line:
        line.open("add.py")
        with line.answers_held():  # the newest is the only one that is shown
            line.editor.keys("i")
            line.editor.type("def")
        line.editor.until_ghost(" add(first, second)")
        begun = len(line.editor.screen.pictures)
        line.tell("test/push", text=":\n    total = first + second")
        line.editor.until_ghost(" add(first, second):\n    total = first + second")
        line.tell("test/push", text="\n    return total")
        line.editor.until_ghost(" add(first, second):\n" + BODY)
        rows = [picture[0] for picture in line.editor.screen.pictures[begun:]]
        assert all(row.startswith("  1 def add(first, second)") for row in rows)
        assert len(line.events("didShowCompletion")) == 1


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("naïve = 'é😋é' + '錯誤'\n", "naïve = 'é😋"),
        ("# e\u0301te\u0301 👩\u200d👩\u200d👧 done\n", "# e\u0301te\u0301 👩\u200d👩\u200d👧"),
    ],
)
def test_any_text_in_utf_16(scene: Begin, text: str, typed: str) -> None:
    with scene(text, setup=UTF_16) as begun:
        begun.open("text.py")
        assert begun.until_event("initialized")["encoding"] == "utf-16"
        begun.editor.keys("i")
        begun.editor.type(typed)
        rest = text.rstrip("\n")[len(typed) :]
        begun.editor.until(lambda: begun.editor.ghost() == rest)
        begun.editor.type(rest[0])
        assert begun.editor.ghost() == rest[1:]
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == text.rstrip("\n"))


def test_it_hides_while_a_menu_is_open(add: EditorScene) -> None:
    add.editor.command("set completeopt=menuone,noselect")
    add.editor.type("def")
    add.editor.until_ghost(" add(first, second):\n" + BODY)
    add.editor.lua("vim.schedule(function() vim.fn.complete(1, {'define', 'default'}) end)")
    add.editor.until(lambda: add.editor.lua("return vim.fn.pumvisible()") == 1)
    add.editor.until(lambda: add.editor.ghost() == "")
    add.editor.keys("<C-e>")
    add.editor.until_ghost(" add(first, second):\n" + BODY)


@pytest.mark.parametrize("windows", ["", "split"])
def test_in_the_last_row_there_is_room_for_it(scene: Begin, windows: str) -> None:
    head = "".join(f"# {number}\n" for number in range(60))
    with scene(head + ADD) as begun:
        begun.open("add.py", head + "\n")
        begun.editor.command(windows)
        begun.editor.keys("Gi")
        begun.editor.type("def")
        begun.editor.until_ghost(" add(first, second):\n" + BODY)  # all of it is drawn
        rows = begun.editor.screen.rows()
        (at,) = (row for row, text in enumerate(rows) if text == " 61 def add(first, second):")
        assert rows[at - 1 : at + 3] == [" 60 # 59", rows[at], *("    " + line for line in BODY.split("\n"))]
        assert begun.editor.screen.cursor == (at, len(" 61 def"))
        begun.editor.type(" ")  # it does not jump about
        assert begun.editor.screen.rows()[at].startswith(" 61 def add")


def test_leaving_insert_mode_hides_the_suggestion_and_entering_requests_again(add: EditorScene) -> None:
    add.editor.type("def")
    add.editor.until_ghost(" add(first, second):\n" + BODY)
    add.editor.keys("<Esc>")
    assert add.editor.ghost() == ""
    add.editor.keys("A")
    add.editor.until_ghost(" add(first, second):\n" + BODY)
