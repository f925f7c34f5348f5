"""The controller's arithmetic: what a draft promises, what was learned, what may be spent on probes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.engine.controller import MIN_SPEEDUP, PROBE_SHARE, TRIAL_SHARE, Calibration, Controller
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


def test_nodes_behind_a_wrong_one_tell_nothing() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.record_outcome([0.9, 0.1, 0.5], 0)
    assert calibration.acceptance(0.9) < 0.15
    assert calibration.acceptance(0.1) == Calibration().acceptance(0.1)
    assert calibration.acceptance(0.5) == Calibration().acceptance(0.5)


def test_newer_drafts_count_more_at_up_to_32_depths() -> None:
    calibration = Calibration()
    calibration.record_outcome([0.9] * 40, 0)
    assert len(calibration.survival) == 32
    calibration = Calibration()
    for right in [4] * 40 + [0] * 40:
        calibration.record_outcome([0.9] * 4, right)
    assert max(calibration.survival) < 0.1
    for _ in range(40):
        calibration.record_outcome([0.9] * 4, 4)
    assert min(calibration.survival) > 0.9


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


def test_a_promise_counts_the_drafters_own_cost() -> None:
    controller = Controller(COSTS, {"model": 2.0})
    assert controller.predict_rate("model", 15) == 0.0  # never seen
    judged(controller, [7] * 200)
    assert controller.predict_rate("model", 15) == pytest.approx(8 / (3.3 + 2.0))
    assert controller.predict_rate("model", 3) == pytest.approx(4 / (1.9 + 2.0))


def test_of_a_block_all_nodes_are_asked_for() -> None:
    controller = Controller(COSTS, {"model": 2.0})
    judged(controller, [1] * 50)
    assert controller.choose_length("model", 15) == 15


def test_a_depth_that_is_not_drafted_any_more_is_thought_to_do_as_the_one_before() -> None:
    controller = Controller(COSTS, {"model": 0.1}, next_ms={"model": 0.1})
    judged(controller, [1] * 40, length=8)  # the first node is right, the second never
    calibration = controller.calibration["model"]
    assert calibration.survival[0] > 0.9
    assert calibration.survival[1] < 0.2
    chance = calibration.survival[1] / calibration.survival[0]
    assert calibration.survival[2] == pytest.approx(calibration.survival[1] * chance)  # not counted
    judged(controller, [1] * 90, length=1)
    assert calibration.survival[1] > 0.5


def probe(controller: Controller, ms: float = 2.0) -> bool:
    """One draft that took this long, if a probe is due."""
    due = controller.should_probe("model", 15, 1.0)
    if due:
        controller.record_draft("model", ms)
    return due


def probes(controller: Controller, plain_steps: int, ms: float = 2.0) -> int:
    """Probes among so many steps of plain decoding, a millisecond each."""
    count = 0
    for _ in range(plain_steps):
        controller.record_verify(1, 1.0)
        count += probe(controller, ms)
    return count


def test_probes_take_their_share_of_the_time_and_no_more() -> None:
    controller = Controller(COSTS, {"model": 2.0})
    assert not probe(controller)  # nothing was earned yet
    first = round(12 * 2.0 / TRIAL_SHARE)
    assert probes(controller, first + 5) == 12  # 5: a rounding error is a step
    assert probes(controller, 10_000) * 2.0 == pytest.approx(PROBE_SHARE * 10_000, rel=0.05)


def test_a_probe_that_takes_longer_than_a_draft_is_paid_for_in_full() -> None:
    """As the first one after a prompt does, when the drafter has to read it."""
    controller = Controller(COSTS, {"model": 2.0})
    for _ in range(round(2.0 / TRIAL_SHARE) + 5):
        controller.record_verify(1, 1.0)
    assert probe(controller, 40.0)
    assert probes(controller, round(0.95 * 40.0 / TRIAL_SHARE)) == 0
    assert probes(controller, round(0.1 * 40.0 / TRIAL_SHARE)) > 0


def test_drafts_that_are_no_probes_are_not_counted_as_such() -> None:
    controller = Controller(COSTS, {"model": 2.0})
    for _ in range(round(2.0 / TRIAL_SHARE) + 5):
        controller.record_verify(1, 1.0)
        controller.record_draft("model", 2.0)
    assert probe(controller)


def test_no_more_than_a_few_probes_are_saved_up() -> None:
    controller = Controller(COSTS, {"model": 2.0})
    for _ in range(100_000):
        controller.record_verify(8, 3.3)
    assert sum(probe(controller) for _ in range(1000)) == 12


def test_a_drafter_that_cannot_pay_is_not_even_probed() -> None:
    controller = Controller(COSTS, {"model": 8.0})
    for _ in range(1000):
        controller.record_verify(1, 1.0)
    assert not controller.should_probe("model", 15, rate=1.0)  # at best 8.1 tokens in 5.8 + 8 ms are to be hoped for
    assert controller.should_probe("model", 15, rate=0.5)


def test_measured_costs_replace_the_old_ones_and_one_interruption_changes_little() -> None:
    controller = Controller(COSTS, {"model": 1.0})
    controller.record_verify(1, 500.0)
    controller.record_draft("model", 500.0)
    assert controller.predict_verify_ms(1) < 1.15
    assert controller.draft_ms["model"] < 1.15
    for _ in range(150):
        controller.record_verify(6, 4.0)
        controller.record_draft("model", 0.2)
    assert controller.predict_verify_ms(6) == pytest.approx(4.0, rel=0.01)
    assert controller.draft_ms["model"] == pytest.approx(0.2, rel=0.01)


def test_a_shorter_measurement_is_believed_sooner_than_a_longer_one() -> None:
    shorter, longer = Controller(COSTS, {"model": 1.0}), Controller(COSTS, {"model": 1.0})
    for _ in range(5):
        shorter.record_draft("model", 0.5)
        longer.record_draft("model", 1.5)
    assert shorter.draft_ms["model"] < 0.6
    assert longer.draft_ms["model"] < 1.2
