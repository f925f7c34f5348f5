"""Keys of the prompt: sending, new lines, what was sent before, and keys that are the app's."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.tui.commands import COMMANDS
from localdflash.tui.history import History
from tests.tui.desk import Desk, type_in
from tests.tui.stage import play, shown

Script = Callable[[Pilot[Any]], Coroutine[Any, Any, None]]


def run(desk: Desk, script: Script, size: tuple[int, int] = (60, 20)) -> None:
    asyncio.run(play(desk, script, size))


def test_enter_sends(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "hello you\n")
        assert [one.text for one in desk.sent] == ["hello you"]
        assert desk.sent[0].attachments == ()
        assert desk.prompt.text == ""

    run(desk, script)


@pytest.mark.parametrize("text", ["", " ", "   "])
def test_nothing_is_not_sent(tmp_path: Path, text: str) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, f"{text}\n")
        assert desk.sent == []
        assert desk.prompt.text == text

    run(desk, script)


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j", "ctrl+enter", "shift+\r"])
def test_new_lines(tmp_path: Path, key: str) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("a", key, "b", "enter")
        await pilot.pause()
        assert [one.text for one in desk.sent] == ["a\nb"]

    run(desk, script)


def test_a_backslash_before_enter_begins_a_new_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "a\\\nb")
        assert (desk.prompt.text, desk.sent) == ("a\nb", [])

    run(desk, script)


def test_text_is_sent_as_it_was_typed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    text = "  größer 你好 👍🏽 [/x] $y \t "

    async def script(pilot: Pilot[Any]) -> None:
        desk.paste(text)
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert [one.text for one in desk.sent] == [text]

    run(desk, script)


@pytest.mark.parametrize(("rows", "screen", "most"), [(1, 20, 1), (5, 20, 5), (12, 20, 8), (12, 10, 5), (3, 5, 2)])
def test_it_grows_and_then_scrolls(tmp_path: Path, rows: int, screen: int, most: int) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "\\\n".join(str(number % 10) for number in range(rows)))
        await pilot.pause()
        assert desk.prompt.size.height == most
        last = shown(desk).split("\n")[-1]
        assert str((rows - 1) % 10) in last
        await pilot.press("enter")
        await pilot.pause()
        assert desk.prompt.size.height == 1

    run(desk, script, (20, screen))


def test_a_long_line_wraps_and_up_goes_through_its_rows_first(tmp_path: Path) -> None:
    history = History(None)
    history.add("before")
    desk = Desk(tmp_path, history)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "word " * 8)
        await pilot.pause()
        assert desk.prompt.size.height > 1
        await pilot.press("up")
        assert desk.prompt.text == "word " * 8
        for _ in range(4):
            await pilot.press("up")
        assert desk.prompt.text == "before"

    run(desk, script, (20, 20))


def test_what_was_sent_before(tmp_path: Path) -> None:
    desk = Desk(tmp_path, editable=False)

    async def script(pilot: Pilot[Any]) -> None:
        for text in ("one", "two\\\nlines", "three"):
            await type_in(pilot, f"{text}\n")
        await type_in(pilot, "draft")
        seen = []
        for key in ["up"] * 4 + ["down"] * 4:
            await pilot.press(key)
            await pilot.pause()
            seen.append(desk.prompt.text)
        assert seen == ["three", "two\nlines", "one", "one", "two\nlines", "three", "draft", "draft"]

    run(desk, script)


def test_changes_to_what_was_sent_before_are_kept_on_the_way(tmp_path: Path) -> None:
    desk = Desk(tmp_path, editable=False)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "one\n")
        await pilot.press("up")
        await type_in(pilot, "!")
        await pilot.press("down", "up")
        assert desk.prompt.text == "one!"

    run(desk, script)


def test_up_in_an_empty_prompt_takes_the_last_message_back(tmp_path: Path) -> None:
    history = History(None)
    history.add("sent")
    desk = Desk(tmp_path, history)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("up")
        await pilot.pause()
        assert (desk.edits, desk.prompt.text) == (1, "")
        await type_in(pilot, "x")
        await pilot.press("up")
        assert (desk.edits, desk.prompt.text) == (1, "sent")

    run(desk, script)


def test_up_where_there_is_no_last_message(tmp_path: Path) -> None:
    history = History(None)
    history.add("sent")
    desk = Desk(tmp_path, history, editable=False)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("up")
        await pilot.pause()
        assert (desk.edits, desk.prompt.text) == (0, "sent")

    run(desk, script)


@pytest.mark.parametrize("key", sorted({key for command in COMMANDS for key in command.keys} | {"pageup", "pagedown"}))
def test_keys_of_the_app_reach_it(tmp_path: Path, key: str) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "some text")
        await pilot.press(key)
        await pilot.pause()
        assert desk.keys == ["page" if key.startswith("page") else key]
        assert desk.prompt.text == "some text"

    run(desk, script)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["ctrl+a", "x"], "xone two"),
        (["home", "x"], "xone two"),
        (["home", "end", "x"], "one twox"),
        (["ctrl+a", "ctrl+e", "x"], "one twox"),
        (["ctrl+w"], "one "),
        (["ctrl+u"], ""),
        (["ctrl+a", "ctrl+k"], ""),
        (["home", "ctrl+d"], "ne two"),
        (["ctrl+u", "ctrl+z"], "one two"),
        (["ctrl+u", "ctrl+z", "ctrl+shift+z"], ""),
        (["backspace"], "one tw"),
    ],
)
def test_keys_of_a_text_area(tmp_path: Path, keys: list[str], text: str) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "one two")
        await pilot.press(*keys)
        await pilot.pause()
        assert desk.prompt.text == text

    run(desk, script)


def test_a_tiny_terminal(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "/")
        assert desk.suggestions.is_open
        await pilot.press("down", "escape", "backspace")
        await type_in(pilot, "a long message that wraps")
        desk.paste("x\n" * 40)
        await pilot.pause()
        assert desk.chips == ["pasted 1"]
        await pilot.press("enter")
        await pilot.pause()
        assert desk.sent[0].text == "a long message that wraps"

    run(desk, script, (20, 5))


def test_resizing_while_suggestions_are_open(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def script(pilot: Pilot[Any]) -> None:
        await type_in(pilot, "/")
        for size in ((20, 5), (100, 40), (1, 1), (60, 20)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await type_in(pilot, "ret\n")
        assert [one.text for one in desk.sent] == ["/retry"]

    run(desk, script)
