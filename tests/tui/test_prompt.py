"""Keys of the prompt: sending, new lines, what was sent before, and keys that are the app's."""

from pathlib import Path

import pytest

from localdflash.tui.commands import COMMANDS
from tests.tui.desk import Desk, type_in
from tests.tui.stage import playing, shown


async def test_keys_of_the_app_reach_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    keys = sorted({key for command in COMMANDS for key in command.keys})
    async with playing(desk, (60, 20)) as pilot:
        await pilot.press("enter", "space", "enter")  # nothing is not sent
        assert desk.sent == []
        await pilot.press("backspace")
        await type_in(pilot, "some text")
        await pilot.press(*keys, "pageup", "pagedown")
        await pilot.pause()
        assert desk.keys == [*keys, "page", "page"]
        assert desk.prompt.text == "some text"


async def test_new_lines(tmp_path: Path) -> None:
    key = "shift+enter"
    desk = Desk(tmp_path)
    async with playing(desk) as pilot:
        await pilot.press("a", key, "b", "enter")
        await pilot.pause()
        assert [one.text for one in desk.sent] == ["a\nb"]


@pytest.mark.parametrize(("rows", "screen", "most"), [(5, 20, 5), (12, 10, 5)])
async def test_it_grows_and_then_scrolls(tmp_path: Path, rows: int, screen: int, most: int) -> None:
    desk = Desk(tmp_path)
    async with playing(desk, (20, screen)) as pilot:
        await type_in(pilot, "\\\n".join(str(number % 10) for number in range(rows)))
        await pilot.pause()
        assert desk.prompt.size.height == most
        last = shown(desk).split("\n")[-1]
        assert str((rows - 1) % 10) in last
        await pilot.press("enter")
        await pilot.pause()
        assert desk.prompt.size.height == 1


async def test_what_was_sent_before(tmp_path: Path) -> None:
    desk = Desk(tmp_path, editable=False)
    async with playing(desk) as pilot:
        for text in ("one", "two\\\nlines", "three"):
            await type_in(pilot, f"{text}\n")
        await type_in(pilot, "draft")
        seen = []
        for key in ["up"] * 4 + ["down"] * 4:
            await pilot.press(key)
            await pilot.pause()
            seen.append(desk.prompt.text)
        assert seen == ["three", "two\nlines", "one", "one", "two\nlines", "three", "draft", "draft"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["ctrl+a", "x"], "xone two"),
        (["ctrl+w"], "one "),
        (["ctrl+u", "ctrl+z", "ctrl+shift+z"], ""),
    ],
)
async def test_keys_of_a_text_area(tmp_path: Path, keys: list[str], text: str) -> None:
    desk = Desk(tmp_path)
    async with playing(desk) as pilot:
        await type_in(pilot, "one two")
        await pilot.press(*keys)
        await pilot.pause()
        assert desk.prompt.text == text
