"""The list itself: rows in view, cutting, marks; and the row of attachments."""

from typing import Any

import pytest
from rich.cells import cell_len
from textual.widgets import Static

from localdflash.chat.messages import Attachment
from localdflash.tui.prompt_field import Attachments
from localdflash.tui.suggestions import PromptSuggestion, Suggestions
from tests.tui.stage import Stage, playing, shown


def stage(*widgets: Any) -> Stage:
    above, below = Static(), Static("below")
    above.styles.height = "1fr"
    return Stage(above, *widgets, below)


def rows(count: int) -> list[PromptSuggestion]:
    return [PromptSuggestion(f"row {number}", str(number), "hint") for number in range(count)]


async def test_moving_scrolls_and_goes_round() -> None:
    suggestions = Suggestions(lambda one: None)
    app = stage(suggestions)
    async with playing(app) as pilot:
        suggestions.show(rows(12), above=30)
        for step, chosen, first in ((1, 1, 0), (7, 8, 1), (3, 11, 4), (1, 0, 0), (-1, 11, 4), (-8, 3, 3)):
            suggestions.move(step)
            await pilot.pause()
            assert suggestions.chosen is not None
            assert suggestions.chosen.text == str(chosen)
            assert shown(app).split("\n")[-9][2:8].rstrip() == f"row {first}"
        suggestions.close()
        suggestions.move(1)
        assert (suggestions.chosen, suggestions.is_open) == (None, False)


@pytest.mark.parametrize("name", ["a/very/long/path/to/some/file.py", "你好/世界/文件.py", "👍🏽" * 20])
async def test_rows_never_are_wider_than_the_screen(name: str) -> None:
    suggestions = Suggestions(lambda one: None)
    app = stage(suggestions)
    async with playing(app, (12, 10)) as pilot:
        suggestions.show([PromptSuggestion(name, "", "a hint that goes on and on", (0, len(name) - 1))], above=5)
        await pilot.pause()
        line = shown(app).split("\n")[-2]
        assert cell_len(line) <= 12
        assert name[-1] in line


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (44, "  one.py 1 bytes   two.py 1 bytes  +1 more"),
        (14, "  on… +2 more"),
    ],
)
async def test_what_does_not_fit_is_counted(width: int, text: str) -> None:
    chips = Attachments()
    app = stage(chips)
    async with playing(app, (width, 5)) as pilot:
        for name in ("one.py", "two.py", "three.py", "one.py"):
            chips.add(Attachment("file", name, "x"))
        chips.items = chips.items[2:] + chips.items[:2]
        await pilot.pause()
        assert shown(app).split("\n")[-2].rstrip() == text
