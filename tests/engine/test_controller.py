"""The controller's arithmetic: what a draft promises, what was learned, what may be spent on probes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.engine.controller import MIN_SPEEDUP, Calibration, Controller
from localdflash.engine.costs import VerifyCosts
from localdflash.engine.draft import Draft

COSTS = {1: 1.0, 2: 1.05, 4: 1.9, 8: 3.3, 16: 5.8, 32: 9.7}


def chain(*confidence: float) -> Draft:
    return Draft("model", [0] * len(confidence), confidence)


def judged(controller: Controller, rights: list[int], length: int = 15, confidence: float = 0.9) -> None:
    for right in rights:
        controller.calibration["model"].record_outcome([confidence] * length, right)


@pytest.mark.parametrize(("claim", "truth"), [(0.95, 0.1), (0.95, 0.5), (0.3, 0.9)])
def test_counting_corrects_a_claim(claim: float, truth: float) -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration()
    assert calibration.acceptance(claim) == pytest.approx(claim, abs=0.05)  # it is trusted until it was counted
    for _ in range(300):
        wrong = np.flatnonzero(rng.random(8) > truth)
        calibration.record_outcome([claim] * 8, int(wrong[0]) if len(wrong) else 8)
    assert calibration.acceptance(claim) == pytest.approx(truth, abs=0.07)
    assert calibration.survival[0] == pytest.approx(truth, abs=0.2)
    assert calibration.survival == sorted(calibration.survival, reverse=True)


@pytest.mark.parametrize("claim", [math.nan, -math.inf, -1.0, 0.0, 1.0, 2.0, math.inf])
def test_a_claim_outside_of_its_range_is_counted_all_the_same(claim: float) -> None:
    controller = Controller(COSTS, {"model": 0.5})
    assert controller.calibration["model"].acceptance(claim) == pytest.approx((11.5 if claim >= 1.0 else 0.5) / 12)
    judged(controller, [0] * 60, 2, claim)
    assert controller.choose_prefix(chain(claim, claim)) == (0, 1.0)


@given(
    confidence=st.lists(st.floats(0.0, 1.0), max_size=31),
    drafting=st.sampled_from([0.0, 0.4, 2.0]),
    slopes=st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
)
def test_the_chosen_prefix_is_the_best_of_all(confidence: list[float], drafting: float, slopes: list[float]) -> None:
    costs = {2**i: 1.0 + sum(slopes[:i]) for i in range(6)}
    controller = Controller(costs, {"model": drafting})
    claimed = [controller.calibration["model"].acceptance(c) for c in confidence]
    expected = 1.0 + np.cumsum(np.cumprod(claimed))
    verify = np.interp(np.arange(2, len(confidence) + 2), list(costs), list(costs.values()))
    pays = expected / verify > MIN_SPEEDUP
    nodes, rate = controller.choose_prefix(chain(*confidence))
    if not pays.any():
        assert (nodes, rate) == (0, 1.0)
        return
    rounds = np.where(pays, expected / (verify + drafting), 0.0)
    assert rounds[nodes - 1] == pytest.approx(rounds.max())
    assert rate == pytest.approx(expected[nodes - 1] / verify[nodes - 1])


MEASURED = {1: 1.0, 2: 1.2, 8: 3.0, 16: 5.0}


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
