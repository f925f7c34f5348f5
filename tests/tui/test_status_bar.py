"""Status bar and speed panel."""

from dataclasses import replace

import pytest

from localdflash.chat.acceptance import Acceptance
from localdflash.chat.messages import StepRecord
from localdflash.tui.speed_panel import LEGEND, panel_text
from localdflash.tui.status_bar import SEPARATOR, Status, StatusBar, fit_parts, status_parts
from localdflash.tui.themes import VARIABLE_DEFAULTS
from tests.tui.stage import Stage, run_app

FULL = Status("embedded", "ready", 412, 1024, 58.2, False, 3.93, 0.512, 181.0)


def line(status: Status, waited: float = 0.0) -> str:
    return SEPARATOR.join(part.text for part in status_parts(status, waited))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"is_average": True}, "58 tok/s avg"),
        ({"context_tokens": 922}, "922/1 024 context nearly full"),
        ({"context_tokens": 1024}, "1 024/1 024 context full"),
        ({"model": "/models/a/Qwen3-4B-Q4_K_M.gguf"}, "Qwen3-4B-Q4_K_M"),
        ({"drafting_on": False}, "drafting off"),
        ({"stage": "starting"}, "starting the daemon…"),
        ({"stage": "disconnected"}, "not connected"),
    ],
)
def test_status_parts(changes: dict[str, object], expected: str) -> None:
    assert expected in line(replace(FULL, **changes)).split(SEPARATOR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, "embedded · 412/1 024 · 58 tok/s · τ 3.9 · 51 % accepted · first 0.18 s"),
        (20, "embedded · 58 tok/s"),
        (17, "embed… · 58 tok/s"),
        (1, "…"),
    ],
)
def test_narrow_line_drops_the_least_important_parts(width: int, expected: str) -> None:
    assert SEPARATOR.join(part.text for part in fit_parts(status_parts(FULL), width)) == expected


def test_model_name_is_sanitised() -> None:
    screen_text = line(Status("a\x1b]0;x\x07[red]\u202e", "ready"))
    assert "[red]" in screen_text
    assert all(char.isprintable() for char in screen_text)


async def test_loading_time_and_last_rate_are_shown() -> None:
    now = [100.0]
    bar = StatusBar(clock=lambda: now[0])
    async with run_app(Stage(bar), (100, 5)) as pilot:
        bar.update(Status("embedded", "starting"))
        now[0] += 50
        bar.update(Status("embedded", "loading"))
        now[0] += 3
        assert bar.render().plain == "● embedded · loading the model… 3 s"
        bar.update(FULL)
        assert bar.render().plain.startswith("○ embedded · 412")
        bar.update(replace(FULL, rate=None, busy=True))
        assert "58 tok/s" in bar.line
        bar.update(replace(FULL, rate=None, model="qwen3-4b"))
        assert "tok/s" not in bar.line
        await pilot.pause()


def test_panel_without_numbers_and_its_legend() -> None:
    changes = {"success-tint", "error-tint"}  # of diffs
    assert {*LEGEND} | {f"{name}-tint" for name in LEGEND} == {*VARIABLE_DEFAULTS} - changes
    statistics = Acceptance()
    statistics.add(StepRecord("\x1b[31m[b]", 1, 1, (1,), 1.0))
    text = panel_text(statistics, 38).plain
    assert all(name in text and meaning in text for name, meaning in LEGEND.items())
    assert "\x1b" not in text
    text = panel_text(Acceptance(), 38).plain
    assert "No numbers yet" in text
    assert "nan" not in text
    assert "0 %" not in text
