"""A question with two answers, by every key, on terminals of any size."""

import asyncio
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.tui.screens.questions import Confirm
from tests.tui.stage import Stage, shown

SIZES = [(20, 5), (40, 12), (100, 30)]
THEMES = ["localdflash-dark", *(pytest.param(theme, marks=pytest.mark.slow) for theme in ("localdflash-light",))]


def _stage(**changed: Any) -> Stage:
    given: dict[str, Any] = {
        "title": "Delete it?",
        "lines": ["It cannot be brought back."],
        "yes": "Delete",
        "no": "Keep",
    }
    return Stage(screen=lambda: Confirm(**(given | changed)))


def _answer(*keys: str, size: tuple[int, int] = (80, 24)) -> list[Any]:
    async def run() -> list[Any]:
        app = _stage()
        async with app.run_test(size=size) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
        return app.results

    return asyncio.run(run())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (["enter"], False),
        (["escape"], False),
        (["n"], False),
        (["y"], True),
        (["tab", "enter"], True),
        (["tab", "tab", "enter"], False),
        (["left", "enter"], True),
        (["right", "enter"], True),
        (["shift+tab", "enter"], True),
        (["tab", "escape"], False),
        (["down", "up", "x", "enter"], False),
    ],
)
def test_keys(keys: list[str], answer: bool, size: tuple[int, int]) -> None:
    assert _answer(*keys, size=size) == (["y"] if answer else [""])


@pytest.mark.parametrize(("button", "answer"), [("#key-y", "y"), ("#key-n", "")])
def test_the_mouse(button: str, answer: str) -> None:
    async def run() -> list[Any]:
        app = _stage()
        async with app.run_test(size=(20, 5)) as pilot:
            await pilot.pause()
            await pilot.click(button)
            await pilot.pause()
        return app.results

    assert asyncio.run(run()) == [answer]


@pytest.mark.parametrize("size", SIZES)
def test_what_it_is_about_and_the_answers_are_on_the_screen(size: tuple[int, int]) -> None:
    async def run() -> str:
        app = _stage()
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            return shown(app)

    screen = asyncio.run(run())
    for text in ("Delete it?", "It cannot be", "Delete", "Keep"):
        assert text in screen


def test_more_lines_than_fit_can_be_read() -> None:
    async def run() -> tuple[str, str]:
        app = _stage(lines=[f"line {number}" for number in range(9)])
        async with app.run_test(size=(20, 5)) as pilot:
            await pilot.pause()
            first = shown(app)
            await pilot.press(*["down"] * 9)
            await pilot.pause()
            return first, shown(app)

    first, last = asyncio.run(run())
    assert "line 0" in first
    assert "line 8" not in first
    assert "line 8" in last


def test_nothing_of_anybody_is_obeyed() -> None:
    odd = "[red]/tmp/[/x]\x1b[31m\u202e.py"

    async def run() -> str:
        app = _stage(title=odd, lines=[odd], yes=odd, no=odd)
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            return shown(app)

    screen = asyncio.run(run())
    assert screen.count("[red]/tmp/[/x]␛[31m⟦U+202E⟧.py") >= 4
    assert "\x1b" not in screen


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_how_it_looks(snap_compare: Any, theme: str, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await pilot.pause()

    assert snap_compare(_stage(), terminal_size=size, run_before=before)
