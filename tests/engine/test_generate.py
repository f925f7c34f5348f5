"""A request: its end, its statistics, and cancellation within one step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localdflash.engine.generate import Generation, Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats

Make = Callable[..., Any]

V = 8
COUNTING = np.zeros((V, V, V), np.float32)  # token t + 1 follows token t
COUNTING[:, np.arange(V), (np.arange(V) + 1) % V] = 1.0


@pytest.fixture
def pair(fake_target: Make, fake_drafter: Make, eager: Make) -> HostPair:
    def invent(ids: list[int], limit: int) -> Any:
        count = min(limit, 3)
        return [(ids[-1] + 1 + i) % V for i in range(count)], [0.9] * count

    return HostPair(fake_target(COUNTING, context=40), [fake_drafter("count", invent)], eager("count"))


def answer(pair: HostPair, request: Request) -> list[int]:
    return [token for step in generate(pair, request) for token in step.tokens]


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 11])
def test_it_stops_at_the_limit(pair: HostPair, limit: int) -> None:
    request = Request([0, 1, 2], limit)
    assert answer(pair, request) == [(3 + i) % V for i in range(limit)]
    assert request.finish_reason == "length"


def test_it_stops_at_an_end_which_is_the_last_token(pair: HostPair) -> None:
    request = Request([0, 1, 2], 30, ends=frozenset({5}))
    assert answer(pair, request) == [3, 4, 5]
    assert request.finish_reason == "stop"
    assert answer(pair, Request([0, 1, 2], 4)) == [3, 4, 5, 6]  # end tokens belong to the request, not to the pair
    assert answer(pair, Request([5, 5, 5], 3, ends=frozenset({5}))) == [
        6,
        7,
        0,
    ]  # an end token in the prompt has no effect


def test_a_prefill_is_reported_piece_by_piece_until_the_first_step(fake_target: Make) -> None:
    pair = HostPair(fake_target(COUNTING, context=40, max_width=5))
    reported: list[int] = []
    generation = Generation(Request([0, 1, 2] * 4, 3, on_prefill=reported.append))
    assert not generation.prefill(pair, interrupt=lambda: bool(reported[1:]))
    assert reported == [0, 5]
    assert generation.prefill(pair)
    assert reported == [0, 5, 5, 10, 12]
    assert generation.step(pair)
    pair.forget()
    assert generation.prefill(pair)
    assert reported == [0, 5, 5, 10, 12]


def test_it_stops_where_the_context_is_full(pair: HostPair) -> None:
    request = Request([1] * 36, 100)
    assert len(answer(pair, request)) == 4
    assert request.finish_reason == "context"


def test_it_stops_within_one_step_of_being_cancelled(pair: HostPair) -> None:
    stop = False
    request = Request([0], 30, cancelled=lambda: stop)
    steps = generate(pair, request)
    next(steps)
    next(steps)
    stop = True
    assert list(steps) == []
    assert request.finish_reason == "cancelled"
    assert request.stats.steps == 2


def test_statistics_count_steps_and_tokens(pair: HostPair) -> None:
    request = Request([0, 1, 2], 9)
    tokens = answer(pair, request)
    stats = request.stats
    assert (request.computed_tokens, stats.tokens, stats.steps) == (2, len(tokens), 3)  # 4 + 4 + 1
    assert stats.steps_by_drafter == {"count": 2, "none": 1}
    assert stats.acceptance() == [1.0, 1.0, 1.0]
    assert request.ttft_ms > 0.0
    again = Request([0, 1, 2], 9)
    answer(pair, again)
    assert again.computed_tokens == 0


def test_sums_over_steps_and_acceptance_by_slot() -> None:
    stats = Stats()
    stats.add(Step([1, 2, 3], "dflash", 4, 2, 1.0, 5.0), 7.0)
    stats.add(Step([5], "lookup", 2, 0, 0.5, 4.0), 5.0)
    assert (stats.steps, stats.tokens, stats.drafted, stats.accepted, stats.tau) == (2, 4, 6, 2, 2.0)
    assert stats.tokens_per_second == pytest.approx(4 / 12e-3)
    assert stats.acceptance() == [0.5, 0.5, 0.0, 0.0]
