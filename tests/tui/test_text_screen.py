import asyncio
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from localdflash.tui.screens.questions import AskText
from tests.tui.stage import Script, Stage, play, shown


def result_of(screen: AskText, script: Script, size: tuple[int, int] = (100, 30)) -> list[str | None]:
    app = Stage(screen=lambda: screen)
    asyncio.run(play(app, script, size))
    return app.results


def pressing(*keys: str) -> Script:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(*keys)
        await pilot.pause()

    return script


def test_enter_takes_what_was_typed_after_what_was_there() -> None:
    assert result_of(AskText("Name of this chat", "parser"), pressing(*" two", "enter")) == ["parser two"]


@pytest.mark.parametrize("lines", [1, 8])
def test_esc_takes_nothing(lines: int) -> None:
    assert result_of(AskText("Name", "old", lines=lines), pressing(*"new", "escape")) == [None]


def test_an_emptied_field_is_an_empty_text_and_not_none() -> None:
    assert result_of(AskText("Name", "ab"), pressing("backspace", "backspace", "enter")) == [""]


def test_many_lines_keep_their_line_feeds() -> None:
    keys = ["ctrl+end", "enter", *"third", "ctrl+s"]
    assert result_of(AskText("Instructions", "one\ntwo", lines=8), pressing(*keys)) == ["one\ntwo\nthird"]


@pytest.mark.parametrize("lines", [1, 4])
def test_nothing_that_a_terminal_obeys_gets_in(lines: int) -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "[b]" in shown(pilot.app)
        assert "\x1b" not in shown(pilot.app)
        focused = pilot.app.focused
        assert focused is not None
        focused.post_message(events.Paste("\x1b]0;title\x07\x9b31m\u202e"))
        await pilot.pause()
        await pilot.press("ctrl+s")
        await pilot.pause()

    (text,) = result_of(AskText("[b]Name\x1b[0m", "a\x1bb[/x]\x85", lines=lines), script)
    assert text is not None
    assert "title" in text
    assert all(char.isprintable() for char in text)


@pytest.mark.parametrize("lines", [1, 8])
def test_a_tiny_terminal(lines: int) -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "abc" in shown(pilot.app)
        await pilot.press("x", "ctrl+s")
        await pilot.pause()

    assert result_of(AskText("Instructions", "abc", lines=lines), script, (20, 5)) in (["abcx"], ["xabc"])
