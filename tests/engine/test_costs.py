"""Costs of a verify: straight lines between what was measured, a pace for all, one disturbed timing without effect."""

import pytest

from localdflash.engine.costs import VerifyCosts

MEASURED = {1: 1.0, 2: 1.2, 8: 3.0, 16: 5.0}


def test_a_machine_that_slows_down_slows_widths_that_are_not_run_too() -> None:
    costs = VerifyCosts(MEASURED)
    for _ in range(20):
        for rows in (1, 8):
            costs.record(rows, MEASURED[rows] * 2)
    assert costs.predict_ms(2) == pytest.approx(2.4, rel=0.25)
    assert costs.predict_ms(1) / costs.predict_ms(8) == pytest.approx(1 / 3, rel=0.05)


GROWTH = {1: 0.001, 2: 0.0015, 8: 0.0045, 16: 0.0085}  # ms for a token of context


def test_a_longer_context_makes_rows_cost_what_they_cost_one_by_one() -> None:
    costs = VerifyCosts(MEASURED, GROWTH)
    assert costs.predict_ms(8) == pytest.approx(3.0)
    costs.set_context_length(8000)
    assert [costs.predict_ms(rows) for rows in (1, 2, 5, 16)] == pytest.approx([9.0, 13.2, 26.1, 73.0])
    costs.set_context_length(0)
    assert costs.predict_ms(8) == pytest.approx(3.0)


def test_what_is_learned_at_one_length_holds_at_others() -> None:
    costs = VerifyCosts(MEASURED, GROWTH)
    costs.set_context_length(2000)
    for _ in range(30):
        costs.record(8, 24.0)  # twice what was expected
        costs.record(1, 6.0)
    assert [costs.predict_ms(1), costs.predict_ms(8)] == pytest.approx([6.0, 24.0], rel=0.05)
    costs.set_context_length(4000)
    assert [costs.predict_ms(1), costs.predict_ms(8)] == pytest.approx([10.0, 42.0], rel=0.05)
