"""HostPair: cached tokens are not recomputed, target and drafters stay in step, errors give the reason."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localdflash.base.errors import ContextOverflow, LocaldflashError, UsageError
from localdflash.engine.controller import Controller
from localdflash.engine.host_pair import AGREED, HostPair
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

Make = Callable[..., Any]

TABLE = np.random.default_rng(0).normal(0, 2, (6, 6, 6)).astype(np.float32)
PROMPT = [1, 2, 3, 4, 5, 0, 1, 3]


def nothing(ids: list[int], limit: int) -> Any:
    return (), ()


def three(ids: list[int], limit: int) -> Any:
    return [1, 2, 3][:limit], [0.9] * min(limit, 3)


@pytest.fixture
def greedy() -> Sampler:
    return Sampler(SamplingParams())


@pytest.fixture
def pair(fake_target: Make, fake_drafter: Make, eager: Make) -> HostPair:
    return HostPair(fake_target(TABLE, context=32, max_width=5), [fake_drafter("three", three)], eager("three"))


def extended(pair: HostPair) -> list[int]:
    """Return the sizes of the chunks computed since the last call."""
    target: Any = pair.target
    sizes = list(target.extended)
    target.extended.clear()
    return sizes


def test_only_uncached_tokens_are_computed(pair: HostPair) -> None:
    pair.prefill(PROMPT)
    extended(pair)
    assert pair.prefill([*PROMPT, 4]) == 1
    assert pair.prefill([*PROMPT, 4]) == 0
    assert pair.prefill([*PROMPT[:4], 0, 0, 0]) == 2
    assert pair.prefill(PROMPT[:3]) == 0
    assert extended(pair) == [1, 2]
    assert pair.drafters[0].save() == pair.target.save()


@pytest.mark.parametrize(("first", "drafter", "drafted"), [(1, "text", 4), (2, "model", 1)])
def test_lookup_draft_that_agrees_with_the_models_draft_is_trusted(
    first: int, drafter: str, drafted: int, fake_target: Make, fake_drafter: Make, greedy: Sampler
) -> None:
    lookup = fake_drafter("text", lambda *_: ([1, 5, 5, 5], [0.5] * 4), is_model=False)
    model = fake_drafter("model", lambda *_: ([first], [0.5]))
    controller = Controller({1: 1.0, 2: 1.0, 4: 1.1, 8: 1.2}, {"model": 0.1})
    pair = HostPair(fake_target(TABLE), [lookup, model], controller)
    for name, right in (("text", 0), ("model", 1), (AGREED, 4)):
        for _ in range(60):
            controller.calibration[name].record_outcome([0.5] * 4, right)
    pair.prefill(PROMPT)
    step = pair.step(greedy, 9)
    assert (step.drafter, step.drafted) == (drafter, drafted)


def test_without_a_controller_nothing_is_drafted(fake_target: Make, fake_drafter: Make, greedy: Sampler) -> None:
    drafter = fake_drafter("three", three)
    pair = HostPair(fake_target(TABLE), [drafter])
    pair.prefill(PROMPT)
    assert pair.step(greedy, 9).drafted == 0
    assert (pair.drafters, drafter.propose_calls, drafter.observed) == ((), 0, [])


def test_drafters_observe_without_drafting(pair: HostPair, greedy: Sampler) -> None:
    drafter: Any = pair.drafters[0]
    pair.prefill(PROMPT)
    pair.drafting_enabled = False
    assert [pair.step(greedy, 9).drafted for _ in range(4)] == [0] * 4
    assert (drafter.propose_calls, drafter.observed) == (0, pair.ids[:-1])
    pair.drafting_enabled = True
    assert pair.step(greedy, 9).drafted == 3


def test_cancelled_prefill_keeps_computed_chunks(pair: HostPair, greedy: Sampler) -> None:
    answers = iter([False, True])
    ids = [1, 2, 3] * 6
    assert pair.prefill(ids, lambda _: next(answers)) == 5
    assert list(pair.cached) == ids[:5]
    assert pair.ids == ids[:6]
    assert pair.prefill(ids) == 12
    assert list(pair.step(greedy, 1).tokens) == [int(TABLE[2, 3].argmax())]


def test_an_empty_prompt_is_refused(pair: HostPair) -> None:
    with pytest.raises(UsageError, match="empty"):
        pair.prefill([])


@pytest.mark.parametrize("length", [32, 33, 500])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(pair: HostPair, length: int) -> None:
    pair.prefill(PROMPT)
    with pytest.raises(ContextOverflow, match=rf"\b{length}\b.*\b32\b"):
        pair.prefill([1] * length)
    assert list(pair.cached) == PROMPT[:-1]  # nothing changed


def test_the_context_can_be_filled_to_the_last_token_and_no_further(pair: HostPair, greedy: Sampler) -> None:
    pair.prefill([1] * 31)
    assert pair.room == 1
    assert len(pair.step(greedy, 9).tokens) == 1
    assert (pair.room, len(pair.ids)) == (0, 32)
    with pytest.raises(ContextOverflow, match="32"):
        pair.step(greedy, 9)
    assert len(pair.ids) == 32


@pytest.mark.parametrize("where", ["verify", "keep", "extend", "observe", "propose", "sample"])
def test_pair_works_after_a_failed_call(
    pair: HostPair, greedy: Sampler, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise LocaldflashError("broken")

    pair.prefill(PROMPT)
    owner: Any = {"observe": pair.drafters[0], "propose": pair.drafters[0], "sample": greedy}.get(where, pair.target)
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, fail)
        with pytest.raises(LocaldflashError, match="broken"):
            pair.prefill([0, 0, *PROMPT]) if where == "extend" else pair.step(greedy, 9)
    pair.prefill(PROMPT)
    assert pair.drafters[0].save() == pair.target.save()
    assert pair.step(greedy, 1).tokens == [int(TABLE[1, 3].argmax())]
