"""Which keys are named when, and how many of them fit."""

from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.chat.answerer import AnswerPiece
from localdflash.tui import hints
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import STEP
from tests.tui.chat_stage import answered, on_stage, shown, typed, wait_until


@pytest.mark.parametrize(
    ("width", "line"), [(100, "one · two · three"), (12, "one · two"), (8, "one"), (2, ""), (0, ""), (-3, "")]
)
def test_as_many_as_fit(width: int, line: str) -> None:
    assert hints.fitting(("one", "two", "three"), width).plain == line


def test_the_keys_of_the_moment() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await wait_until(pilot, lambda: "Tab something to try · F1 help · / commands" in shown(app))
        await pilot.press("a")
        await wait_until(pilot, lambda: "Enter sends · Ctrl+J new line" in shown(app))
        await pilot.press("backspace", "!")
        await wait_until(pilot, lambda: "Enter runs it, if you agree" in shown(app))
        await pilot.press("backspace")
        await answered(pilot)
        app.transcript.focus()
        await wait_until(pilot, lambda: "c copies · 1-9 a code block · e edits" in shown(app))
        await pilot.press("tab", "up")
        await wait_until(pilot, lambda: "Esc leaves the chat as it was" in shown(app))
        await pilot.press("escape")
        answerer.script = [AnswerPiece("It ", STEP), None]
        await typed(pilot, "and?")
        await wait_until(pilot, lambda: "Esc stops · Enter sends afterwards" in shown(app))

    on_stage(script)


def test_a_low_terminal_has_no_frame() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        assert "╭" not in shown(app)
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: "╭" in shown(app))

    on_stage(script, size=(40, 15))
