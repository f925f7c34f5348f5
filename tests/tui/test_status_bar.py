from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localdflash.tui.status_bar import SEPARATOR, Status, StatusBar, StatusPart, fitting, status_parts
from tests.tui.stage import Stage, playing

FULL = Status("embedded", "ready", 412, 1024, 58.2, False, 3.93, 0.512, 181.0)


def line(status: Status, waited: float = 0.0) -> str:
    return SEPARATOR.join(part.text for part in status_parts(status, waited))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"average": True}, "58 tok/s avg"),
        ({"used": 922}, "922/1 024 context nearly full"),
        ({"used": 1024}, "1 024/1 024 context full"),
        ({"model": "/models/a/Qwen3-4B-Q4_K_M.gguf"}, "Qwen3-4B-Q4_K_M"),
        ({"draft": False}, "drafting off"),
        ({"stage": "starting"}, "starting the engine…"),
        ({"stage": "gone"}, "the engine is gone"),
    ],
)
def test_what_is_said(changes: dict[str, object], expected: str) -> None:
    assert expected in line(replace(FULL, **changes)).split(SEPARATOR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("used", "width", "expected"),
    [
        (960, 40, "embedded · 94 % full · 58 tok/s"),
        (960, 25, "embedded · 58 tok/s"),
    ],
)
def test_a_warning_is_shortened_before_it_is_left_out(used: int, width: int, expected: str) -> None:
    parts = status_parts(replace(FULL, used=used, tau=None, accepted=None, ttft_ms=None))
    assert SEPARATOR.join(part.text for part in fitting(parts, width)) == expected


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, "embedded · 412/1 024 · 58 tok/s · τ 3.9 · 51 % accepted · first 0.18 s"),
        (20, "embedded · 58 tok/s"),
        (17, "embed… · 58 tok/s"),
        (1, "e"),
    ],
)
def test_the_least_important_goes_first(width: int, expected: str) -> None:
    assert SEPARATOR.join(part.text for part in fitting(status_parts(FULL), width)) == expected


@given(
    st.lists(
        st.builds(
            StatusPart,
            st.just("x"),
            st.text(st.characters(exclude_categories=["C", "M"]), min_size=1),
            st.integers(0, 9),
        )
    ),
    st.integers(0, 60),
)
def test_never_wider_than_the_room(parts: list[StatusPart], width: int) -> None:
    shown = fitting(parts, width)
    assert cell_len(SEPARATOR.join(part.text for part in shown)) <= width or not width
    assert len(shown) <= len(parts)


def test_controls_and_markup_are_harmless() -> None:
    shown = line(Status("a\x1b]0;x\x07[red]\u202e", "ready"))
    assert "[red]" in shown
    assert all(char.isprintable() for char in shown)


@pytest.mark.parametrize(
    ("stage", "waited", "said"),
    [
        ("loading", 0.4, "loading the model…"),
        ("loading", 3.2, "loading the model… 3 s"),
        ("loading: compiling 3 of 37", 3.2, "loading the model, compiling 3 of 37…"),
        ("waiting", 3.2, "waiting for another chat… 3 s"),
    ],
)
def test_seconds_of_loading_are_counted(stage: str, waited: float, said: str) -> None:
    assert line(replace(FULL, stage=stage), waited) == f"embedded · {said}"


class Bar(StatusBar):
    picked = ""

    def on_status_bar_part_clicked(self, event: StatusBar.PartClicked) -> None:
        self.picked = event.part


async def test_loading_counts_from_when_it_began_and_a_rate_stays_until_there_is_another() -> None:
    now = [100.0]
    bar = Bar(clock=lambda: now[0])
    async with playing(Stage(bar), (100, 5)) as pilot:
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


@pytest.mark.parametrize(("column", "part"), [(3, "model"), (16, "context"), (28, "rate"), (0, ""), (95, "")])
async def test_a_click_says_which_part(column: int, part: str) -> None:
    bar = Bar()
    async with playing(Stage(bar), (100, 5)) as pilot:
        bar.update(FULL)
        await pilot.pause()
        await pilot.click(StatusBar, offset=(column, 0))
        await pilot.pause()
        assert bar.picked == part
