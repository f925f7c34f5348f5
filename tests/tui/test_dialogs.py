"""Dialogs that ask, compare and explain: every key, terminals of any size, and nothing of anybody is obeyed."""

import math
import re
from pathlib import Path

import pytest
from textual import events

from localdflash.base.errors import UsageError
from localdflash.chat.drafting_comparison import Comparison, ModeResult
from localdflash.chat.sampling_settings import SETTINGS
from localdflash.tui.chat_app import ChatApp
from localdflash.tui.commands import COMMANDS, parse
from localdflash.tui.screens.compare_screen import compare_text
from localdflash.tui.screens.help_screen import HelpScreen, key_name
from localdflash.tui.screens.questions import AskText, Option, QuestionDialog, RolePicker
from localdflash.tui.themes import THEMES
from localdflash.tui.welcome import Welcome, example_questions
from tests.tui.stage import Stage, dialog, playing, result_of, shown

ODD = "[red]/tmp/[/x]\x1b[31m\u202e.py"
PLAIN, DRAFTING = ModeResult(20.0, 256, 1.0, 2, 120.0), ModeResult(52.5, 256, 3.914, 2, 130.0)


def confirm(*lines: str) -> QuestionDialog:
    options = Option("y", "Delete"), Option("n", "Keep")
    return QuestionDialog("Delete it?", lines or ("It cannot be brought back.",), *options)


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (["enter"], ""),
        (["escape"], ""),
        (["y"], "y"),
        (["tab", "enter"], "y"),
        (["tab", "tab", "enter"], ""),
    ],
)
async def test_enter_and_esc_give_the_safe_answer(keys: list[str], answer: str) -> None:
    assert await result_of(confirm, *keys, size=(40, 12)) == [answer]


async def test_nothing_of_a_question_is_obeyed() -> None:
    async with dialog(lambda: QuestionDialog(ODD, [ODD], Option("y", ODD), Option("n", ODD))) as (_, app):
        assert shown(app).count("[red]/tmp/[/x]␛[31m⟦U+202E⟧.py") >= 4
        assert "\x1b" not in shown(app)


@pytest.mark.parametrize("lines", [1, 4])
async def test_nothing_that_a_terminal_obeys_gets_into_a_text(lines: int) -> None:
    async with dialog(lambda: AskText("[b]Name\x1b[0m", "a\x1bb[/x]\x85", lines=lines)) as (pilot, app):
        assert "[b]" in shown(app)
        assert "\x1b" not in shown(app)
        assert app.focused is not None
        app.focused.post_message(events.Paste("\x1b]0;title\x07\x9b31m\u202e"))
        await pilot.pause()
        await pilot.press("ctrl+s")
        await pilot.pause()
    (text,) = app.results
    assert "title" in text
    assert all(char.isprintable() for char in text)


ROLES = {"coder": "You write code.\nShort code.", "mine": "[b]be\x1b kind[/]\n" + "line\n" * 40}


async def test_the_text_of_the_highlighted_role_is_shown_and_harmless() -> None:
    async with dialog(lambda: RolePicker(ROLES)) as (pilot, app):
        assert "Short code." not in shown(app)
        await pilot.press("down")
        await pilot.pause()
        assert "Short code." in shown(app)
        await pilot.press("down")
        await pilot.pause()
        assert shown(app).count("[b]be␛ kind[/]") == 2  # in the list, and below it
        await pilot.click("ChoiceList", offset=(3, 2))
        await pilot.pause()
    assert app.results == ["coder"]


def test_a_comparison_says_what_is_bad_and_nothing_that_is_not_known() -> None:
    text = compare_text(Comparison(DRAFTING, PLAIN, 2, identical=False), 60).plain
    assert "✗ The texts differ" in text
    assert "Drafting is 0.38× as fast" in text
    text = compare_text(Comparison(PLAIN, running="answer 2 of 4, drafting"), 60).plain
    assert "answer 2 of 4, drafting" in text
    assert "× as fast" not in text
    assert "texts" not in text.lower()
    assert compare_text(Comparison(ModeResult(math.nan)), 60).plain.count("–") == 2


async def test_typing_narrows_the_help() -> None:
    async with dialog(HelpScreen, (120, 40)) as (pilot, app):
        assert "/retry" in shown(app)
        await pilot.press(*"block n")
        await pilot.pause()
        assert "/code [N]" in shown(app)
        assert "/retry" not in shown(app)
        await pilot.press(*"xyz")
        await pilot.pause()
        assert "Nothing has these words." in shown(app)
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None]


def test_the_page_for_users_has_exactly_the_commands_of_the_table(root: Path) -> None:
    page = (root / "docs" / "chat.md").read_text()
    rows = re.findall(r"^\| `(/[^`]+)` \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    assert [(usage, keys.strip(), does.strip()) for usage, keys, does in rows] == [
        (command.usage, ", ".join(map(key_name, command.keys)), command.help) for command in COMMANDS
    ]
    for name in (*THEMES, *SETTINGS, "chats.db", "--no-log", "--continue", "--resume", "--plain", "--jsonl"):
        assert name in page


def test_every_command_does_something() -> None:
    for command in COMMANDS:
        assert callable(getattr(ChatApp, f"action_{command.name}")), command


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/NEW", "new", ""),
        ("/set temperature 0.5", "set", "temperature 0.5"),
        ("/resume box", "chats", "box"),
        ("/rename  a name ", "rename", "a name"),
    ],
)
def test_a_command(line: str, name: str, argument: str) -> None:
    found = parse(line)
    assert found
    assert (found[0].name, found[1]) == (name, argument)


@pytest.mark.parametrize("line", ["hello", "/etc/hosts is odd", "/ new", "/new\nand more"])
def test_a_message(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/retyr", "there is no /retyr; did you mean /retry?"),
        ("/stop now", "/stop takes nothing after it"),
    ],
)
def test_what_is_no_command(line: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(line)
    assert str(error.value) == told


async def text_of(welcome: Welcome, size: tuple[int, int] = (120, 24)) -> str:
    app = Stage(welcome)
    async with playing(app, size):
        assert app.query_one("#welcome") is welcome
        return " ".join(shown(app).split())


async def test_the_first_run_is_explained_and_has_three_things_to_try() -> None:
    text = await text_of(Welcome(first_run=True))
    assert text.startswith("localdflash, a coding assistant")
    for said in (*example_questions(), "runs on this machine", "nothing you type leaves it", "models list", "/model"):
        assert said in text
    for said in ("F1", "Ctrl+D", "--no-log", "drafter", "often wrong"):
        assert said in text


async def test_with_a_server_nothing_is_called_local() -> None:
    text = await text_of(Welcome(first_run=True, model="gpt", server="https://api.example.com/v1"))
    assert "what you send goes there" in text
    assert "https://api.example.com/v1" in text
    assert "localdflash models list" not in text  # names models of this machine
    assert "nothing you type leaves" not in text


async def test_another_model_is_named_and_not_called_small() -> None:
    text = await text_of(Welcome(first_run=True, model="/m/[b]q\x1bwen.gguf"))
    assert "[b]q" in text
    assert "\x1b" not in text
    assert "A small model" not in text
