"""Dialogs, help, command parsing and the welcome text: keys, sizes, and sanitised content."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from textual import events
from textual.screen import Screen

from localdflash.base.errors import UsageError
from localdflash.chat.drafting_comparison import Comparison, ModeResult
from localdflash.chat.sampling_settings import SETTINGS
from localdflash.tui.chat_app import ChatApp
from localdflash.tui.commands import COMMANDS, parse
from localdflash.tui.pastes import Paste, PasteParser
from localdflash.tui.screens.compare_screen import compare_text
from localdflash.tui.screens.dialog import TextField
from localdflash.tui.screens.help_screen import HelpScreen, key_name
from localdflash.tui.screens.questions import Option, QuestionDialog, RolePicker, TextDialog
from localdflash.tui.themes import THEMES
from localdflash.tui.welcome import Welcome, example_questions
from tests.tui.stage import Stage, dialog, result_of, run_app, screen_text, wait_until

ODD = "[red]/tmp/[/x]\x1b[31m\u202e.py"
BASELINE, DRAFTING = ModeResult([20.0] * 4, 512, 1.0, 120.0), ModeResult([52.5] * 4, 512, 3.914, 130.0)


def confirm(*lines: str) -> QuestionDialog:
    options = Option("y", "Delete"), Option("n", "Keep")
    return QuestionDialog("Delete it?", lines or ("It cannot be brought back.",), *options)


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (["enter"], ""),
        (["escape"], ""),
        (["y"], "y"),
        (["Y"], "y"),
        (["tab", "enter"], "y"),
        (["tab", "tab", "enter"], ""),
    ],
)
async def test_enter_and_esc_give_the_safe_answer(keys: list[str], answer: str) -> None:
    assert await result_of(confirm, *keys, size=(40, 12)) == [answer]


@pytest.mark.parametrize(("screen", "key", "answer"), [(confirm, "y", "y"), (lambda: RolePicker({}), "enter", "none")])
async def test_second_key_in_one_read_is_ignored(screen: Callable[[], Screen[str]], key: str, answer: str) -> None:
    async with dialog(screen) as (pilot, app):
        await pilot.pause()
        for _ in range(2):
            app.post_message(events.Key(key, None))
        await wait_until(pilot, lambda: bool(app.results))
        await pilot.pause()
        assert len(app.screen_stack) == 1
    assert app.results == [answer]


async def test_question_text_is_sanitised() -> None:
    async with dialog(lambda: QuestionDialog(ODD, [ODD], Option("y", ODD), Option("n", ODD))) as (_, app):
        assert screen_text(app).count("[red]/tmp/[/x]␛[31m⟦U+202E⟧.py") >= 4
        assert "\x1b" not in screen_text(app)


@pytest.mark.parametrize("lines", [1, 4])
async def test_pasted_control_characters_are_removed(lines: int) -> None:
    async with dialog(lambda: TextDialog("[b]Name\x1b[0m", "a\x1bb[/x]\x85", lines=lines)) as (pilot, app):
        assert "[b]" in screen_text(app)
        assert "\x1b" not in screen_text(app)
        assert app.focused is not None
        app.focused.post_message(events.Paste("\x1b]0;title\x07\x9b31m\u202e"))
        await pilot.pause()
        await pilot.press("ctrl+s")
        await pilot.pause()
    (text,) = app.results
    assert "title" in text
    assert all(char.isprintable() for char in text)


async def test_lines_of_a_paste_are_kept() -> None:
    (paste,) = PasteParser().feed("\x1b[200~one\rtwo\r\x1b[201~")
    async with dialog(lambda: TextDialog("Instructions", lines=8)) as (pilot, app):
        app.post_message(paste)
        await pilot.press("ctrl+s")
    assert app.results == ["one\ntwo\n"]


async def test_huge_paste_is_refused() -> None:
    async with dialog(lambda: TextDialog("Instructions", lines=8)) as (pilot, app):
        app.post_message(Paste("x" * 10, 10_000_000))
        await wait_until(pilot, lambda: "paste too large (9.5 MB, at most 977 KB)" in screen_text(app))
        await pilot.press("ctrl+s")
    assert app.results == [""]


async def test_long_text_can_be_undone_and_redone() -> None:
    text = "\n".join(f"line {number}" for number in range(20))
    async with dialog(lambda: TextDialog("Instructions", lines=8)) as (pilot, app):
        app.post_message(events.Paste(text))
        await pilot.pause()
        field = app.screen.query_one(TextField)
        assert field.text == text
        await pilot.press("ctrl+z")
        assert field.text == ""
        await pilot.press("ctrl+y")
        assert field.text == text


ROLES = {"coder": "You write code.\nShort code.", "mine": "[b]be\x1b kind[/]\n" + "line\n" * 40}


async def test_role_picker_previews_sanitised_text() -> None:
    async with dialog(lambda: RolePicker(ROLES)) as (pilot, app):
        assert "Short code." not in screen_text(app)
        await pilot.press("down")
        await pilot.pause()
        assert "Short code." in screen_text(app)
        await pilot.press("down")
        await pilot.pause()
        assert screen_text(app).count("[b]be␛ kind[/]") == 2  # in the list and in the preview
        await pilot.click("ChoiceList", offset=(3, 2))
        await pilot.pause()
    assert app.results == ["coder"]


def test_comparison_shows_a_slowdown_and_hides_unknown_values() -> None:
    text = compare_text(Comparison(DRAFTING, BASELINE, identical=False), 60).plain
    assert "✗ The texts differ" in text
    assert "Drafting is 0.38× as fast" in text
    text = compare_text(Comparison(BASELINE, activity="answer 2 of 8, drafting"), 60).plain
    assert "answer 2 of 8, drafting" in text
    assert "× as fast" not in text
    assert "texts" not in text.lower()
    assert compare_text(Comparison(ModeResult([math.nan])), 60).plain.count("–") == 2


async def test_help_search() -> None:
    async with dialog(HelpScreen, (120, 40)) as (pilot, app):
        assert "/retry" in screen_text(app)
        await pilot.press(*"block n")
        await pilot.pause()
        assert "/code [N]" in screen_text(app)
        assert "/retry" not in screen_text(app)
        await pilot.press(*"xyz")
        await pilot.pause()
        assert "Nothing has these words." in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None]


def test_chat_page_lists_exactly_the_commands(root: Path) -> None:
    page = (root / "docs" / "chat.md").read_text()
    rows = re.findall(r"^\| `(/[^`]+)` \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    assert [(usage, keys.strip(), does.strip()) for usage, keys, does in rows] == [
        (command.usage, ", ".join(map(key_name, command.keys)), command.help) for command in COMMANDS
    ]
    for name in (*THEMES, *SETTINGS, "chats.db", "--no-log", "--continue", "--resume", "--plain", "--jsonl"):
        assert name in page


def test_every_command_has_an_action() -> None:
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
def test_parse_command(line: str, name: str, argument: str) -> None:
    found = parse(line)
    assert found
    assert (found[0].name, found[1]) == (name, argument)


@pytest.mark.parametrize("line", ["hello", "/etc/hosts is odd", "/ new", "/new\nand more"])
def test_parse_message(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/retyr", "there is no /retyr; did you mean /retry?"),
        ("/stop now", "/stop takes no argument"),
    ],
)
def test_parse_invalid_command(line: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(line)
    assert str(error.value) == message


async def text_of(welcome: Welcome, size: tuple[int, int] = (120, 24)) -> str:
    app = Stage(welcome)
    async with run_app(app, size):
        assert app.query_one("#welcome") is welcome
        return " ".join(screen_text(app).split())


async def test_first_run_text_and_examples() -> None:
    text = await text_of(Welcome(first_run=True))
    assert text.startswith("localdflash, a coding assistant")
    for part in (*example_questions(), "runs on this machine", "nothing you type leaves it", "models list", "/model"):
        assert part in text
    for part in ("F1", "Ctrl+D", "--no-log", "drafter", "often wrong"):
        assert part in text


async def test_welcome_with_a_remote_server() -> None:
    text = await text_of(Welcome(first_run=True, model="gpt", server="https://api.example.com/v1"))
    assert "what you send goes there" in text
    assert "https://api.example.com/v1" in text
    assert "localdflash models list" not in text  # lists local models
    assert "nothing you type leaves" not in text


async def test_welcome_names_another_model() -> None:
    text = await text_of(Welcome(first_run=True, model="/m/[b]q\x1bwen.gguf"))
    assert "[b]q" in text
    assert "\x1b" not in text
    assert "A small model" not in text
