import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from localdflash.chat.drafting_comparison import ComparedWay, Comparison
from localdflash.tui.screens.compare_screen import CompareScreen, compare_text
from tests.tui.stage import Stage, play, shown

PLAIN, DRAFTING = ComparedWay(20.0, 256, 1.0, 2, 120.0), ComparedWay(52.5, 256, 3.914, 2, 130.0)
DONE = Comparison(PLAIN, DRAFTING, 2, identical=True)


def bars(text: str) -> dict[str, int]:
    return {row.split()[0]: row.count("█") for row in text.split("\n") if row.startswith(("plain", "drafting"))}


def test_the_result_stands_in_numbers_beside_its_bars() -> None:
    text = compare_text(DONE, 63).plain
    for said in (
        "20.0 tok/s",
        "52.5 tok/s",
        "2 of 2 rounds · 256 tokens · τ 3.91 · first 0.13 s",
        "Drafting is 2.62 times as fast",
        "✓ Both texts are the same, to the byte",
    ):
        assert said in text
    assert bars(text) == {"plain": round(41 * 20 / 52.5), "drafting": 41}
    assert max(map(cell_len, text.split("\n"))) <= 63


def test_texts_that_differ_and_drafting_that_is_slower_are_said_as_they_are() -> None:
    text = compare_text(Comparison(DRAFTING, PLAIN, 2, identical=False), 60).plain
    assert "✗ The texts differ" in text
    assert "Drafting is 0.38 times as fast" in text


def test_what_is_not_known_yet_is_not_said() -> None:
    text = compare_text(Comparison(PLAIN, running="answer 2 of 4, drafting"), 60).plain
    assert "answer 2 of 4, drafting" in text
    assert "times as fast" not in text
    assert "texts" not in text.lower()
    assert compare_text(Comparison(ComparedWay(math.nan)), 60).plain.count("–") == 2


@pytest.mark.parametrize("width", range(16, 60, 7))
def test_bars_shrink_with_the_screen(width: int) -> None:
    rows = compare_text(DONE, width).plain.split("\n")
    assert all(cell_len(row) <= max(width, 23) for row in rows if row.startswith(("plain", "drafting")))


def test_it_follows_a_comparison_until_it_is_closed() -> None:
    screen = CompareScreen()
    app = Stage(screen=lambda: screen)

    async def script(pilot: Pilot[Any]) -> None:
        assert "Starting…" in shown(app)
        screen.show(Comparison(PLAIN, running="answer 2 of 4, drafting"))
        await pilot.pause()
        assert "answer 2 of 4" in shown(app)
        screen.show(Comparison(problem="[b]the engine\x1b is gone"))
        await pilot.pause()
        assert "[b]the engine␛ is gone" in shown(app)
        screen.show(DONE)
        await pilot.pause()
        assert "2.62 times as fast" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        screen.show(DONE)  # one that was on its way

    asyncio.run(play(app, script))
    assert app.results == [None]


def test_what_is_known_before_it_is_shown_is_shown() -> None:
    screen = CompareScreen()
    screen.show(DONE)
    app = Stage(screen=lambda: screen)

    async def script(_: Pilot[Any]) -> None:
        assert "2.62 times as fast" in shown(app)

    asyncio.run(play(app, script))


def test_a_tiny_terminal() -> None:
    screen = CompareScreen()
    make: Callable[[], CompareScreen] = lambda: screen  # noqa: E731
    app = Stage(screen=make)

    async def script(pilot: Pilot[Any]) -> None:
        screen.show(DONE)
        await pilot.press("down", "end")
        await pilot.pause()
        assert "same, to the" in shown(app)

    asyncio.run(play(app, script, (20, 5)))
