"""Calibration: costs of this machine into a controller, and nothing left behind in the caches."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

import localdflash.engine.calibrate as module
from localdflash.engine.calibrate import calibrate
from localdflash.engine.draft import Draft

Make = Callable[..., Any]

TABLE = np.zeros((4, 4, 4), np.float32)


class Clock:
    """Replacement of `time` in the module."""

    now = 0.0

    def spend(self, ms: float) -> None:
        self.now += ms / 1e3

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def timed_target(fake_target: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function (clock, cost, **target's) -> target whose verify batch takes `cost(width)` milliseconds."""

    def make(clock: Clock, cost: Callable[[int], float], **settings: Any) -> Any:
        monkeypatch.setattr(module, "time", clock)
        target = fake_target(TABLE, **settings)
        verify = target.verify

        def timed(anchor: int, draft: Draft) -> Any:
            clock.spend(cost(len(draft) + 1))
            return verify(anchor, draft)

        monkeypatch.setattr(target, "verify", timed)
        return target

    return make


def test_costs_are_those_of_the_machine(timed_target: Make, fake_drafter: Make) -> None:
    clock = Clock()

    def invent(ids: list[int], limit: int) -> Any:
        clock.spend(2.5)
        return [1] * limit, [0.5] * limit

    target, drafter = timed_target(clock, lambda rows: 0.8 + 0.2 * rows, context=256), fake_drafter("model", invent)
    controller = calibrate(target, [fake_drafter("lookup", invent, is_model=False), drafter])
    for rows in (1, 2, 4, 8, 16, 32):
        assert controller.costs.predict_ms(rows) == pytest.approx(1.0 + 0.2 * (rows - 1))
    assert controller.draft_ms == {"lookup": 0.0, "model": pytest.approx(2.5)}
    assert (target.length, drafter.observed) == (0, [])


def test_a_long_context_is_assumed_to_see_what_it_costs(timed_target: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token costs 1 ms and each further one 0.2 ms; at 2048 tokens 2 ms and 1.2 ms."""
    assumed: list[int] = []

    def assume(length: int) -> bool:
        assumed.append(length)
        return True

    target = timed_target(Clock(), lambda rows: 0.8 + 1.2 * rows if assumed else 0.8 + 0.2 * rows, context=4096)
    monkeypatch.setattr(target, "assume_length", assume)
    controller = calibrate(target, [])
    assert assumed == [module.LONG_CONTEXT_TOKENS]
    assert controller.costs.predict_ms(8) == pytest.approx(2.4)
    controller.costs.set_context_length(module.LONG_CONTEXT_TOKENS - module.CONTEXT_TOKENS)  # what is between the two
    for rows in (1, 2, 4, 8, 32):
        assert controller.costs.predict_ms(rows) == pytest.approx(2.0 + 1.2 * (rows - 1), rel=0.05)
    assert target.length == 0


def test_a_slow_model_is_timed_in_one_round(timed_target: Make) -> None:
    widths: list[int] = []

    def cost(rows: int) -> float:
        widths.append(rows)
        return 50.0

    calibrate(timed_target(Clock(), cost, context=256), [])
    assert widths == [32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize("call", range(14))
def test_a_disturbed_call_hardly_changes_the_costs(timed_target: Make, call: int) -> None:
    """Each call in turn takes 20 ms longer; the first ones of a process often do."""
    calls = count()
    target = timed_target(Clock(), lambda rows: 2.8 + 0.2 * rows + (20.0 if next(calls) == call else 0.0), context=256)
    costs = calibrate(target, []).costs
    for rows in (1, 2, 4, 8, 16, 32):
        assert costs.predict_ms(rows) == pytest.approx(2.8 + 0.2 * rows, rel=0.1)


def test_the_batch_of_a_mixture_of_experts_costs_what_its_different_tokens_touch(
    fake_target: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each different token of a batch touches an expert of its own, which takes 1 ms to read."""
    clock, target = Clock(), fake_target(np.zeros((64, 64, 64), np.float32), context=256)
    monkeypatch.setattr(module, "time", clock)
    verify = target.verify

    def timed(anchor: int, draft: Draft) -> Any:
        clock.spend(len({anchor, *draft.tokens}))
        return verify(anchor, draft)

    monkeypatch.setattr(target, "verify", timed)
    assert calibrate(target, []).costs.predict_ms(8) == pytest.approx(8.0)
