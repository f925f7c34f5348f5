"""Controller on simulated machines: never much slower than without drafts, nearly as fast as the best fixed length.

Time is simulated too: a verify batch and a draft move the pair's clock by their costs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.engine import host_pair
from localdflash.engine.controller import MIN_SPEEDUP, Calibration, Controller
from localdflash.engine.costs import VerifyCosts
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import TargetFeatures, Verification
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

COSTS = {1: 1.0, 2: 1.05, 4: 1.9, 8: 3.3, 16: 5.8, 32: 9.7}
V = 4
TEXT = np.random.default_rng(0).integers(0, V, 20_000)  # what the model answers, whatever happens
LOGITS = np.eye(V, dtype=np.float32)[TEXT]

Acceptance = Callable[[int], float]  # position -> share of right nodes


def cost_of(rows: float) -> float:
    return float(np.interp(rows, list(COSTS), list(COSTS.values())))


@dataclass
class Clock:
    """Replacement of `time` in `host_pair`."""

    ms: float = 0.0
    drafting: float = 0.0

    def perf_counter(self) -> float:
        return self.ms / 1e3


class SimulatedTarget:
    context, vocab_size, max_width = 1_000_000, V, 32
    is_recurrent = False

    def __init__(self, clock: Clock) -> None:
        self.clock, self.length = clock, 0
        self.costs = [0.0] + [cost_of(rows) for rows in range(1, 33)]

    def extend(self, ids: Sequence[int]) -> None:
        self.length += len(ids)

    def verify(self, anchor: int, draft: Draft) -> Verification:
        rows = len(draft) + 1
        self.clock.ms += self.costs[rows]
        return Verification(LOGITS[self.length + 1 : self.length + 1 + rows], None)

    def keep(self, rows: int) -> None:
        self.length += rows

    def end_prompt(self) -> None:
        pass

    def crop(self, length: int) -> None:
        self.length = length

    def assume_length(self, length: int) -> bool:
        return False


@dataclass
class SimulatedDrafter:
    """Drafter whose tokens are right with a probability. `claim`: its confidence; None: an honest one that varies."""

    clock: Clock
    cost: float
    acceptance: Acceptance
    claim: float | None = None
    name: str = "model"
    is_model: bool = True
    max_draft_tokens: int = 15
    length: int = 0
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(5)

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        self.length += len(ids)

    def propose(self, anchor: int, limit: int) -> Draft:
        count, mean = min(limit, 15), self.acceptance(self.length)
        self.clock.ms += self.cost
        self.clock.drafting += self.cost
        self.asked.append(self.length)
        if not mean:
            return EMPTY_DRAFT
        truth = TEXT[self.length + 1 : self.length + 1 + count]
        spread = 0.0 if self.claim is not None else 0.15
        chance = np.clip(self._rng.normal(mean, spread, count), 0.0, 1.0)
        tokens = np.where(self._rng.random(count) < chance, truth, (truth + 1) % V)
        confidence = chance if self.claim is None else np.full(count, self.claim)
        return Draft(self.name, tokens.tolist(), confidence.tolist())

    def rollback(self, length: int) -> None:
        self.length = length


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(host_pair, "time", clock)
    return clock


def run(clock: Clock, drafters: list[Any], tokens: int, controller: Controller) -> float:
    """Return the milliseconds per token."""
    target: Any = SimulatedTarget(clock)
    pair = HostPair(target, drafters, controller)
    pair.prefill(TEXT[:2].tolist())
    sampler = Sampler(SamplingParams())
    clock.ms = clock.drafting = 0.0
    while len(pair.ids) < tokens + 2:
        pair.step(sampler, 10_000)
    assert pair.ids == TEXT[: len(pair.ids)].tolist()
    return clock.ms / (len(pair.ids) - 2)


def measured(*drafters: SimulatedDrafter) -> Controller:
    return Controller(COSTS, {d.name: d.cost if d.is_model else 0.0 for d in drafters})


def best_fixed(acceptance: float, drafting: float) -> float:
    """Return the milliseconds per token of the best fixed draft length, 0 included, by the geometric series."""
    tokens = [sum(acceptance**i for i in range(m + 1)) for m in range(1, 16)]
    return min(1.0, *((cost_of(m + 2) + drafting) / tokens[m] for m in range(15)))


@pytest.mark.parametrize(
    ("acceptance", "claim", "drafting"),
    [(*kind, ms) for kind in ((0.02, 0.99), (0.3, None), (0.6, 0.6)) for ms in (0.3, 1.0, 3.0)],
)
def test_never_three_percent_slower_than_plain_decoding(
    clock: Clock, acceptance: float, claim: float | None, drafting: float
) -> None:
    drafter = SimulatedDrafter(clock, drafting, lambda _: acceptance, claim)
    assert run(clock, [drafter], 2500, measured(drafter)) < 1.03


@pytest.mark.parametrize(
    ("acceptance", "drafting", "claim"),
    [
        *((0.7, 0.3, 0.7), (0.8, 0.3, None), (0.9, 0.3, 0.5), (0.9, 1.0, 0.99), (0.97, 1.0, 0.97)),
        *((1.0, 3.0, 0.5), (0.3, 3.0, 0.9)),
        *((0.02, 0.0, 0.8), (0.3, 0.0, 0.8), (0.6, 0.0, 0.8), (0.95, 0.0, 0.8)),  # a free one
    ],
)
def test_nearly_as_fast_as_the_best_fixed_choice(
    clock: Clock, acceptance: float, drafting: float, claim: float | None
) -> None:
    drafter = SimulatedDrafter(clock, drafting, lambda _: acceptance, claim, is_model=drafting > 0)
    pace = run(clock, [drafter], 2500, measured(drafter))
    assert pace < (1.05 if drafting else 1.04) * best_fixed(acceptance, drafting)


def test_a_drafter_that_becomes_good_is_found_and_one_that_becomes_bad_is_left(clock: Clock) -> None:
    drafter = SimulatedDrafter(clock, 0.5, lambda n: 0.9 if 2000 <= n < 4000 else 0.02)
    run(clock, [drafter], 6000, measured(drafter))
    before, during, after = np.histogram(drafter.asked, [0, 2000, 4000, 6000])[0]
    assert during > 4 * before
    assert during > 4 * after


def test_an_untried_drafter_is_expected_to_lose_five_percent_a_token() -> None:
    controller = Controller({1: 1.0, 2: 1.0}, {"model": 0.0})
    assert controller.start_probe("model", 1, rate=1.949)  # (1 + 0.95) tokens in 1 ms
    assert not controller.start_probe("model", 1, rate=1.951)


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
