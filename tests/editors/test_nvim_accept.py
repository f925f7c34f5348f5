"""Accepting a suggestion in Neovim, whole, in part or not: buffer, undo history, notifications."""

import pytest

from localdflash.lab.scripts.editors.nvim_scene import ADD, BODY, SETUP, EditorScene
from tests.editors.conftest import Begin, type_def

pytestmark = pytest.mark.editors
WHOLE = "def add(first, second):\n" + BODY


@pytest.fixture
def typed(add: EditorScene) -> EditorScene:
    """Type `def` and wait until the rest of the function is suggested."""
    add.editor.type("def")
    add.editor.until_ghost(" add(first, second):\n" + BODY)
    return add


def test_word_by_word(typed: EditorScene) -> None:
    parts = ("def add", "def add(", "def add(first", "def add(first,", "def add(first, second")
    for text in parts:
        typed.editor.keys("<C-Right>")
        typed.editor.until(lambda: typed.editor.text() == text)  # noqa: B023
        assert typed.editor.ghost() == WHOLE[len(text) :]
    typed.editor.until(lambda: len(typed.events("didPartiallyAcceptCompletion")) == len(parts))
    assert not typed.events("accept", "didRejectCompletion")


@pytest.mark.parametrize(("key", "accepted"), [("<Tab>", WHOLE), ("<C-Right>", "def add")])
def test_undo_and_repeat(typed: EditorScene, key: str, accepted: str) -> None:
    typed.editor.keys(key)
    typed.editor.until(lambda: typed.editor.text() == accepted)
    typed.editor.type("  # mine")
    again = f"{accepted}  # mine"
    typed.editor.keys("<Esc>")
    typed.editor.lua("vim.api.nvim_buf_set_lines(0, -1, -1, false, {''}); vim.cmd('normal! G')")
    typed.editor.keys(".")
    typed.editor.until(lambda: typed.editor.text() == f"{again}\n{again}")
    typed.editor.keys("u")
    assert typed.editor.text() == f"{again}\n"
    for keys, text in (("uu", accepted), ("u", "def"), ("<C-r>", accepted), ("uu", "")):
        typed.editor.keys(keys)
        assert typed.editor.text() == text


def test_a_dismissed_one_stays_away_until_the_next_key(typed: EditorScene) -> None:
    typed.editor.keys("<C-]>")
    assert typed.editor.ghost() == ""
    assert typed.until_event("didRejectCompletion")["text"] == WHOLE
    typed.editor.keys(" ")
    typed.editor.until_ghost("add(first, second):\n" + BODY)
    typed.editor.keys("<C-]>")
    typed.editor.command("set expandtab shiftwidth=4 softtabstop=4")
    typed.editor.keys("<Tab>")  # a tab where nothing is suggested
    typed.editor.until(lambda: typed.editor.text() == "def     ")


@pytest.mark.parametrize(
    "mapping",
    [
        "vim.keymap.set('i', '<Tab>', 'MAPPED')",
        "vim.cmd([[inoremap <expr> <Tab> 'MAP' .. 'PED']])",
        "vim.cmd([[autocmd BufRead * inoremap <buffer> <Tab> MAPPED]])",
    ],
)
def test_tab_does_what_it_was_mapped_to_before(scene: Begin, mapping: str) -> None:
    late = "autocmd" in mapping  # mapped after setup()
    with scene(ADD, setup=SETUP if late else f"{mapping}\n{SETUP}") as begun:
        if late:
            begun.editor.lua(mapping)
        type_def(begun)
        begun.editor.keys("<C-]>")
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == "defMAPPED")
        begun.editor.keys("<C-u>")
        begun.editor.type("def")
        begun.editor.until_ghost(" add(first, second):\n" + BODY)
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == WHOLE)


def test_several_are_asked_for_by_hand_and_turned_through(scene: Begin) -> None:
    with scene("for x in y:\n", "for item in items:\n", "for a, b in c:\n") as begun:
        begun.open("for.py")
        begun.editor.keys("i")
        begun.editor.type("for ")
        begun.editor.until_ghost("x in y:")
        begun.editor.keys("<M-n>")
        begun.editor.until_ghost("item in items:")
        begun.until_event("request", kind=1)
        assert begun.editor.screen.rows()[0] == "  1 for item in items: (2/3)"
        begun.editor.keys("<M-n>")
        begun.editor.until_ghost("a, b in c:")
        begun.editor.keys("<M-n>")
        begun.editor.until_ghost("x in y:")
        begun.editor.keys("<M-p>")
        begun.editor.until_ghost("a, b in c:")
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == "for a, b in c:")
        assert begun.until_event("accept")["id"].endswith(":2")


CALL = "value = add(1, 2).real\n"


def test_a_closed_bracket_is_covered_and_replaced(scene: Begin) -> None:
    with scene(CALL) as begun:
        begun.open("call.py", "value = add()\n")
        begun.editor.keys("A<Left>")
        begun.editor.until_ghost("1, 2).real")
        assert begun.editor.screen.rows()[0] == "  1 value = add(1, 2).real"
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: begun.editor.text() == CALL.strip())
        assert begun.editor.lua("return vim.api.nvim_win_get_cursor(0)") == [1, len(CALL.strip())]
        begun.editor.keys("<Esc>u")
        begun.editor.until(lambda: begun.editor.text() == "value = add()")


def test_a_word_that_is_not_ascii(scene: Begin) -> None:
    with scene("x = '😋é' + y\r\n") as begun:
        begun.open("x.py", "\r\n")
        begun.editor.keys("i")
        begun.editor.type("x = ")
        begun.editor.until_ghost("'😋é' + y")
        begun.editor.keys("<C-Right>")
        begun.editor.keys("<C-Right>")
        begun.editor.until(lambda: begun.editor.text() == "x = '😋é")
        begun.until_event("didPartiallyAcceptCompletion")


def test_there_are_plug_maps_and_functions(scene: Begin) -> None:
    with scene(ADD, keys=False) as begun:
        begun.open("add.py")
        begun.editor.lua("vim.keymap.set('i', '<C-y>', '<Plug>(localdflash-accept-word)')")
        begun.editor.keys("i")
        begun.editor.type("def")
        begun.editor.until_ghost(" add(first, second):\n" + BODY)
        begun.editor.keys("<C-y>")
        begun.editor.until(lambda: begun.editor.text() == "def add")
        assert begun.editor.lua("return require('localdflash').accept_line()") is True
        begun.editor.until(lambda: begun.editor.text() == WHOLE.partition("\n")[0])
        assert begun.editor.lua("return require('localdflash').is_visible()") is True
        begun.editor.keys("<Tab>")
        begun.editor.until(lambda: "\n" not in begun.editor.text() and begun.editor.text() != WHOLE.partition("\n")[0])
