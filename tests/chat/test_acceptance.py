"""Running statistics of an answer compared with sums over all steps, with a simulated clock."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.chat.acceptance import WINDOW_SECONDS, Acceptance
from localdflash.chat.messages import StepRecord


class Clock:
    """Simulated clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@st.composite
def step_records(draw: st.DrawFn) -> StepRecord:
    drafted = draw(st.integers(0, 15))
    accepted = draw(st.integers(0, drafted))
    drafter = draw(st.sampled_from(["dflash", "lookup"])) if drafted else ""
    return StepRecord(drafter, drafted, accepted, (1,) * (accepted + 1), draw(st.floats(0.1, 500)))


@given(steps=st.lists(st.tuples(step_records(), st.floats(0, 3)), max_size=60))
@settings(max_examples=40)
def test_running_statistics_match_sums_over_all_steps(steps: list[tuple[StepRecord, float]]) -> None:
    clock = Clock()
    stats = Acceptance(clock)
    arrivals = []
    for step, wait in steps:
        clock.now += wait
        stats.add(step, "x")
        arrivals.append((clock.now, len(step.sizes)))
    records = [step for step, _ in steps]
    tokens, ms = sum(len(step.sizes) for step in records), sum(step.ms for step in records)
    assert (stats.steps, stats.tokens) == (len(records), tokens)
    assert (stats.drafted, stats.accepted) == (sum(s.drafted for s in records), sum(s.accepted for s in records))
    assert stats.by_drafter == Counter(step.drafter for step in records)
    for slot, share in enumerate(stats.acceptance_by_position):
        drafted = [step for step in records if step.drafted > slot]
        assert share == pytest.approx(sum(step.accepted > slot for step in drafted) / len(drafted))
    assert len(stats.acceptance_by_position) == max((step.drafted for step in records), default=0)
    assert stats.tau == (pytest.approx(tokens / len(records)) if records else None)
    assert stats.average_rate == (pytest.approx(tokens / ms * 1e3) if records else None)
    assert (stats.step_ms is None) == (not records)
    for share, bound in zip((50, 95), stats.step_ms or (), strict=False):
        assert len([s for s in records if s.ms <= bound]) * 100 >= share * len(records)
        assert len([s for s in records if s.ms < bound]) * 100 < share * len(records)
    _check_rate(stats, arrivals)


def _check_rate(stats: Acceptance, arrivals: list[tuple[float, int]]) -> None:
    if not arrivals:
        assert stats.rate is None
        return
    last = arrivals[-1][0]
    before = [i for i, (when, _) in enumerate(arrivals) if when <= last - WINDOW_SECONDS]
    first = min(before[-1] if before else 0, max(len(arrivals) - 2, 0))
    span = last - arrivals[first][0]
    recent = sum(count for _, count in arrivals[first + 1 :])
    assert stats.rate == pytest.approx(recent / span if span else stats.average_rate)
