"""Suggestions while typing: when they open, their keys, and the inserted text."""

from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual import events
from textual.widgets import Static

from localdflash.chat.attachable_files import FileMatch
from localdflash.chat.messages import Attachment
from localdflash.tui.prompt_field import Attachments
from localdflash.tui.suggestions import CompletionContext, PromptSuggestion, Suggestions, completion_context
from tests.tui.desk import Desk, type_in, wait_for_suggestions
from tests.tui.stage import Stage, run_app, screen_text, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    for name in ("alpha.py", "beta.py", "betas.py", "gamma.md"):
        (root / name).write_text("x = 1\n")
    return root


@pytest.mark.parametrize(
    ("before", "first", "context"),
    [
        ("/co", True, CompletionContext("command", 0, "co")),
        ("/co", False, None),
        ("/theme da", True, CompletionContext("argument", 7, "da", "theme")),
        ("/attach src", True, CompletionContext("file", 8, "src", "attach")),
        ("/etc/hosts", True, None),
        ("see (@sr", False, CompletionContext("file", 5, "sr")),
        ("/system like @a", True, CompletionContext("file", 13, "a")),
        ('@"with s', True, CompletionContext("file", 0, "with s")),
        ("me@host", True, None),
    ],
)
def test_completion_context(before: str, first: bool, context: CompletionContext | None) -> None:
    assert completion_context(before, first=first) == context


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("/exit\n", "/quit"),
        ("/cpy\n", "/copy [N]"),
        ("/copy 3\n", "/copy 3"),
    ],
)
async def test_enter_on_a_command(folder: Path, keys: str, text: str) -> None:
    desk = Desk(folder)
    async with run_app(desk) as pilot:
        await type_in(pilot, keys)
        if text.endswith("]"):
            assert (desk.prompt.text, desk.sent) == ("/copy ", [])
            return
        assert [one.text for one in desk.sent] == [text]


@pytest.mark.parametrize(
    ("start", "burst", "text"),
    [
        ("/thin", "k off\n", "/think off"),
        ("see @alp", " and\n", "see @alp and"),
        ("/th", "ink\t", "/think"),
    ],
)
async def test_outdated_suggestions_are_not_inserted(folder: Path, start: str, burst: str, text: str) -> None:
    """Suggestions for a shorter word than the typed one must not replace it."""
    desk = Desk(folder, choices=lambda command: ["on", "off"] if command == "think" else ())
    async with run_app(desk) as pilot:
        await type_in(pilot, start)
        await wait_until(pilot, lambda: bool(desk.labels))
        named = {"\n": "enter", "\t": "tab", " ": "space"}
        for one in burst:
            desk.post_message(events.Key(named.get(one, one), one))
        await wait_until(pilot, lambda: bool(desk.sent) or desk.prompt.text.strip() == text)
        assert [one.text for one in desk.sent] == ([text] if burst.endswith("\n") else [])


async def test_suggestion_keys(folder: Path) -> None:
    desk = Desk(folder)
    async with run_app(desk) as pilot:
        await type_in(pilot, "@")
        await wait_for_suggestions(pilot, desk, "alpha.py", "beta.py", "betas.py", "gamma.md")
        for key, label in (("down", "beta.py"), ("up", "alpha.py"), ("up", "gamma.md"), ("down", "alpha.py")):
            await pilot.press(key)
            assert desk.suggestions.chosen is not None
            assert desk.suggestions.chosen.label == label
        await pilot.press("escape")
        assert not desk.suggestions.display
        assert (desk.prompt.text, desk.keys) == ("@", [])
        await type_in(pilot, "be")
        await pilot.pause(0.05)
        assert not desk.suggestions.display  # stays closed for this word
        await pilot.press("escape")
        assert desk.keys == ["escape"]
        await type_in(pilot, " @bet")
        await wait_for_suggestions(pilot, desk, "beta.py", "betas.py")
        await pilot.press("down", "tab")
        assert desk.prompt.text == "@be @betas.py "


async def test_file_names_are_sanitised(folder: Path) -> None:
    desk = Desk(folder)
    desk.files.find = lambda query, limit=30: [FileMatch("a\x1b]0;x\x07[/b].py", marked=(0,))]  # type: ignore[method-assign]
    async with run_app(desk) as pilot:
        await type_in(pilot, "@a")
        await wait_until(pilot, lambda: "a␛]0;x␇[/b].py" in screen_text(desk))
        assert "\x1b" not in screen_text(desk)
        await pilot.press("tab")
        assert "\x1b" not in desk.prompt.text


def stage(*widgets: Any) -> Stage:
    above, below = Static(), Static("below")
    above.styles.height = "1fr"
    return Stage(above, *widgets, below)


def rows(count: int) -> list[PromptSuggestion]:
    return [PromptSuggestion(f"row {number}", str(number), "hint") for number in range(count)]


async def test_moving_scrolls_and_wraps_around() -> None:
    suggestions = Suggestions(lambda one: None)
    app = stage(suggestions)
    async with run_app(app) as pilot:
        suggestions.show(rows(12), above=30)
        for step, chosen, first in ((1, 1, 0), (7, 8, 1), (3, 11, 4), (1, 0, 0), (-1, 11, 4), (-8, 3, 3)):
            suggestions.move(step)
            await pilot.pause()
            assert suggestions.chosen is not None
            assert suggestions.chosen.text == str(chosen)
            assert screen_text(app).split("\n")[-9][2:8].rstrip() == f"row {first}"
        suggestions.close()
        suggestions.move(1)
        assert (suggestions.chosen, suggestions.display) == (None, False)


@pytest.mark.parametrize("name", ["a/very/long/path/to/some/file.py", "你好/世界/文件.py", "👍🏽" * 20])
async def test_rows_fit_the_screen(name: str) -> None:
    suggestions = Suggestions(lambda one: None)
    app = stage(suggestions)
    async with run_app(app, (12, 10)) as pilot:
        suggestions.show([PromptSuggestion(name, "", "a hint that goes on and on", (0, len(name) - 1))], above=5)
        await pilot.pause()
        line = screen_text(app).split("\n")[-2]
        assert cell_len(line) <= 12
        assert name[-1] in line


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (44, "  one.py 1 bytes   two.py 1 bytes  +1 more"),
        (14, "  on… +2 more"),
    ],
)
async def test_attachments_that_do_not_fit_are_counted(width: int, text: str) -> None:
    chips = Attachments()
    app = stage(chips)
    async with run_app(app, (width, 5)) as pilot:
        for name in ("one.py", "two.py", "three.py", "one.py"):
            chips.add(Attachment("file", name, "x"))
        chips.items = chips.items[2:] + chips.items[:2]
        await pilot.pause()
        assert screen_text(app).split("\n")[-2].rstrip() == text
