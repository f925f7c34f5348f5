"""Dialogs that ask, compare and explain: every key, terminals of any size, and nothing of anybody is obeyed."""

import math
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual import events

from localdflash.chat.drafting_comparison import Comparison, ModeResult
from localdflash.chat.sampling_settings import SETTINGS
from localdflash.tui.commands import COMMANDS
from localdflash.tui.screens.compare_screen import CompareScreen, compare_text
from localdflash.tui.screens.help_screen import HelpScreen, key_name
from localdflash.tui.screens.questions import AskText, Confirm, RolePicker
from localdflash.tui.themes import THEMES
from tests.tui.stage import dialog, result_of, shown

ODD = "[red]/tmp/[/x]\x1b[31m\u202e.py"
PLAIN, DRAFTING = ModeResult(20.0, 256, 1.0, 2, 120.0), ModeResult(52.5, 256, 3.914, 2, 130.0)
DONE = Comparison(PLAIN, DRAFTING, 2, identical=True)


def confirm(*lines: str) -> Confirm:
    return Confirm("Delete it?", lines or ("It cannot be brought back.",), yes="Delete", no="Keep")


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
    async with dialog(lambda: Confirm(ODD, [ODD], yes=ODD, no=ODD)) as (_, app):
        assert shown(app).count("[red]/tmp/[/x]␛[31m⟦U+202E⟧.py") >= 4
        assert "\x1b" not in shown(app)


@pytest.mark.parametrize(
    ("title", "value", "lines", "keys", "result"),
    [
        ("Name", "ab", 1, ["backspace", "backspace", "enter"], ""),
        ("Name", "old", 8, [*"new", "escape"], None),
        ("Instructions", "one\ntwo", 8, ["ctrl+end", "enter", *"third", "ctrl+s"], "one\ntwo\nthird"),
    ],
)
async def test_a_text_is_asked_for(title: str, value: str, lines: int, keys: list[str], result: str | None) -> None:
    assert await result_of(lambda: AskText(title, value, lines=lines), *keys, size=(20, 5)) == [result]


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


@pytest.mark.parametrize(
    ("keys", "result"),
    [(["down", "enter"], "coder"), (["down", "escape"], None)],
)
async def test_a_role_is_chosen(keys: list[str], result: str | None) -> None:
    assert await result_of(lambda: RolePicker(ROLES), *keys) == [result]


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


def test_a_comparison_stands_in_numbers_beside_its_bars() -> None:
    text = compare_text(DONE, 63).plain
    for said in (
        "20.0 tok/s",
        "52.5 tok/s",
        "2 of 2 rounds · 256 tokens · τ 3.91 · first 0.13 s",
        "Drafting is 2.62× as fast",
        "✓ Both texts are the same, to the byte",
    ):
        assert said in text
    bars = {row.split()[0]: row.count("█") for row in text.split("\n") if row.startswith(("baseline", "drafting"))}
    assert bars == {"baseline": round(41 * 20 / 52.5), "drafting": 41}
    for width in range(16, 64, 7):
        rows = compare_text(DONE, width).plain.split("\n")
        assert all(cell_len(row) <= max(width, 23) for row in rows if row.startswith(("baseline", "drafting")))


def test_a_comparison_says_what_is_bad_and_nothing_that_is_not_known() -> None:
    text = compare_text(Comparison(DRAFTING, PLAIN, 2, identical=False), 60).plain
    assert "✗ The texts differ" in text
    assert "Drafting is 0.38× as fast" in text
    text = compare_text(Comparison(PLAIN, running="answer 2 of 4, drafting"), 60).plain
    assert "answer 2 of 4, drafting" in text
    assert "× as fast" not in text
    assert "texts" not in text.lower()
    assert compare_text(Comparison(ModeResult(math.nan)), 60).plain.count("–") == 2


async def test_a_comparison_is_followed_until_it_is_closed() -> None:
    screen = CompareScreen()
    async with dialog(lambda: screen, (60, 16)) as (pilot, app):
        assert "Starting…" in shown(app)
        screen.show(Comparison(problem="[b]the engine\x1b is gone"))
        await pilot.pause()
        assert "[b]the engine␛ is gone" in shown(app)
        screen.show(DONE)
        await pilot.pause()
        assert "2.62× as fast" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        screen.show(DONE)  # one that was on its way
    assert app.results == [None]


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


async def test_the_help_scrolls_to_its_last_line() -> None:
    size = (120, 20)
    async with dialog(HelpScreen, size) as (pilot, app):
        assert "Close a dialog" not in shown(app)
        text = app.screen.query_one("#all")
        await pilot.press("down")
        await pilot.pause()
        assert text.scroll_offset.y == 1
        while text.scroll_offset.y < text.max_scroll_y:
            before = text.scroll_offset.y
            await pilot.press("pagedown")
            await pilot.pause()
            assert text.scroll_offset.y > before
        assert "dialog." in shown(app)


def test_the_page_for_users_has_exactly_the_commands_of_the_table(root: Path) -> None:
    page = (root / "docs" / "chat.md").read_text()
    rows = re.findall(r"^\| `(/[^`]+)` \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    assert [(usage, keys.strip(), does.strip()) for usage, keys, does in rows] == [
        (command.usage, ", ".join(map(key_name, command.keys)), command.help) for command in COMMANDS
    ]
    for name in (*THEMES, *SETTINGS, "chats.db", "--no-log", "--continue", "--resume", "--plain", "--jsonl"):
        assert name in page
