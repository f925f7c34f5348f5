"""The counts behind every number that is shown."""

import pytest

from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats


@pytest.fixture
def stats() -> Stats:
    stats = Stats()
    stats.add(Step([1, 2, 3], "dflash", 4, 2, 1.0, 5.0), 7.0)
    stats.add(Step([4], "none", 0, 0, 0.0, 3.0), 3.5)
    stats.add(Step([5], "lookup", 2, 0, 0.5, 4.0), 5.0)
    return stats


def test_sums(stats: Stats) -> None:
    assert (stats.steps, stats.tokens, stats.drafted, stats.accepted) == (3, 5, 6, 2)
    assert stats.tau == pytest.approx(5 / 3)
    assert stats.tokens_per_second == pytest.approx(5 / 15.5e-3)
    assert stats.steps_by_drafter == {"dflash": 1, "none": 1, "lookup": 1}


def test_acceptance_is_counted_by_slot(stats: Stats) -> None:
    assert stats.offered_by_slot == [2, 2, 1, 1]
    assert stats.accepted_by_slot == [1, 1, 0, 0]
    assert stats.acceptance() == [0.5, 0.5, 0.0, 0.0]
