"""Properties of the pacing, with a clock that the tests move."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.tui.reveal_pace import LAG_SECONDS, DisplayPace, motion_unwanted

_EPSILON = 1e-9


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


# What happens: text comes, or time passes (seconds) and what is due is taken.
_EVENTS = st.lists(st.one_of(st.text(max_size=40), st.floats(0, 0.4)), max_size=60)


@given(_EVENTS, st.booleans())
def test_nothing_is_lost_or_reordered_and_nothing_waits_longer_than_the_lag(
    events: Sequence[str | float], whole: bool
) -> None:
    clock = Clock()
    pace = DisplayPace(whole=whole, clock=clock)
    put, taken = "", ""
    came: list[float] = []
    for event in events:
        if isinstance(event, str):
            pace.put(event)
            put += event
            came += [clock.now] * len(event)
            continue
        clock.now += event
        taken += pace.take()
        assert put.startswith(taken)
        overdue = [one for one in came[len(taken) :] if clock.now - one > LAG_SECONDS + _EPSILON]
        assert not overdue
    assert taken + pace.rest() == put
    assert not pace
    assert pace.take() == pace.rest() == ""


@pytest.mark.parametrize(("interval", "size"), [(0.1, 40), (0.14, 64)])
def test_bursts_are_shown_evenly_at_the_rate_at_which_they_come(interval: float, size: int) -> None:
    """A frame shows about its share: neither nothing nor a whole burst."""
    clock = Clock()
    pace = DisplayPace(clock=clock)
    frame = interval / 5
    shown: list[int] = []
    for _ in range(60):
        pace.put("x" * size)
        for _ in range(5):
            clock.now += frame
            shown.append(len(pace.take()))
    settled = shown[-100:]
    assert sum(settled) == pytest.approx(20 * size, abs=size)
    assert max(settled) <= size / 5 + 2
    assert min(settled) >= size / 5 - 2


@pytest.mark.parametrize(
    ("environment", "unwanted"),
    [
        ({"NO_MOTION": "1"}, True),
        ({"TEXTUAL_ANIMATIONS": "none"}, True),
        ({"NO_MOTION": ""}, False),
    ],
)
def test_motion_is_left_out_where_the_user_says_so(environment: dict[str, str], unwanted: bool) -> None:
    assert motion_unwanted(environment) is unwanted
