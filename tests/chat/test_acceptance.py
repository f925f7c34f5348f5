"""The running numbers of an answer against plain sums, and the rate against a clock that the test moves."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.chat.acceptance import WINDOW_SECONDS, Acceptance
from localdflash.chat.messages import StepRecord


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@st.composite
def records(draw: st.DrawFn) -> StepRecord:
    drafted = draw(st.integers(0, 15))
    accepted = draw(st.integers(0, drafted))
    drafter = draw(st.sampled_from(["dflash", "lookup"])) if drafted else ""
    return StepRecord(drafter, drafted, accepted, (1,) * (accepted + 1), draw(st.floats(0.1, 500)))


@given(steps=st.lists(st.tuples(records(), st.floats(0, 3)), max_size=60))
@settings(max_examples=40)
def test_the_sums_are_plain_sums(steps: list[tuple[StepRecord, float]]) -> None:
    clock = Clock()
    seen = Acceptance(clock)
    arrived = []
    for step, wait in steps:
        clock.now += wait
        seen.add(step, "x")
        arrived.append((clock.now, len(step.sizes)))
    only = [step for step, _ in steps]
    tokens, ms = sum(len(step.sizes) for step in only), sum(step.ms for step in only)
    assert (seen.steps, seen.tokens) == (len(only), tokens)
    assert (seen.drafted, seen.accepted) == (sum(s.drafted for s in only), sum(s.accepted for s in only))
    assert seen.by_drafter == Counter(step.drafter for step in only)
    for slot, share in enumerate(seen.acceptance):
        offered = [step for step in only if step.drafted > slot]
        assert share == pytest.approx(sum(step.accepted > slot for step in offered) / len(offered))
    assert len(seen.acceptance) == max((step.drafted for step in only), default=0)
    assert seen.tau == (pytest.approx(tokens / len(only)) if only else None)
    assert seen.average == (pytest.approx(tokens / ms * 1e3) if only else None)
    assert (seen.step_ms is None) == (not only)
    for share, bound in zip((50, 95), seen.step_ms or (), strict=False):
        assert len([s for s in only if s.ms <= bound]) * 100 >= share * len(only)
        assert len([s for s in only if s.ms < bound]) * 100 < share * len(only)
    _check_rate(seen, arrived)


def _check_rate(seen: Acceptance, arrived: list[tuple[float, int]]) -> None:
    if not arrived:
        assert seen.rate is None
        return
    last = arrived[-1][0]
    before = [i for i, (when, _) in enumerate(arrived) if when <= last - WINDOW_SECONDS]
    first = min(before[-1] if before else 0, max(len(arrived) - 2, 0))
    span = last - arrived[first][0]
    recent = sum(count for _, count in arrived[first + 1 :])
    assert seen.rate == pytest.approx(recent / span if span else seen.average)
