"""Random histories of a pair: whatever was asked of it before, every token is the one that plain decoding commits.

The oracle sees the whole text in one forward of the torch decoder. Lengths are such that the context's end, the ring of
taps and the sizes of attention are all reached; on a CPU a step that was launched ahead has really happened.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.step_choice import Ways
from localdflash.backends.cuda.stepper import Way
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.backends.cuda.histories import LENGTH, WAYS, History, World, any_history, fuzz, play, tiny_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with tiny_world(tmp_path_factory.mktemp("tiny")) as world:
        yield world


@fuzz
@any_history
def test_any_history_leads_to_the_right_tokens(world: World, acts: list[Any], seed: int) -> None:
    play(world, acts, seed)


@pytest.mark.nightly
@settings(fuzz, max_examples=60)
@any_history
def test_more_histories(world: World, acts: list[Any], seed: int) -> None:
    play(world, acts, seed)


def test_a_prefill_that_failed_is_not_taken_for_the_text_before_it(world: World) -> None:
    pair, old, new, answers = world.pair, [1] * 40, [2, 3] * 40, iter([False, False])
    pair.forget()
    pair.prefill(old)
    with pytest.raises(StopIteration):
        pair.prefill(new, lambda: next(answers))
    pair.prefill(old)
    pair.step(Sampler(SamplingParams()), 16)
    assert pair.ids[len(old) :] == world.right(pair.ids, len(old), SamplingParams())


@torch.inference_mode()
def test_a_step_ahead_at_the_end_of_the_context_has_attention_to_its_last_row(world: World) -> None:
    """Sizes of attention are for where the device may be, which is past what the host will take."""
    pair, text = world.pair, [7, 3, 5] * 43
    for _ in range(3 * ROWS):
        text += world.right([*text, 0], len(text), SamplingParams())
    pair.forget()
    pair.ways = Ways({"lookup": 1.0})
    pair.set_documents([text])
    for length in range(130, LENGTH):
        pair.prefill(text[:length])
        pair.step(Sampler(SamplingParams()), 1000)
        assert pair.ids == text[: len(pair.ids)]
    pair.set_documents([])


def test_taps_are_read_before_they_are_written_over(world: World) -> None:
    """A long run of lookup alone: the drafter is told of it from time to time."""
    pair, sampler = world.pair, Sampler(SamplingParams())
    pair.forget()
    pair.ways = Ways({"lookup": 1.0})
    pair.prefill([9, 4])
    while pair.room > 1:
        pair.step(sampler, pair.room - 1)
    History(world, random.Random(0), checked=2).end()
    pair.forget()
    pair.load(pair.save())
    assert not pair.ids, "nothing can be saved and loaded too"


def test_a_way_that_has_to_wait_is_taken_next(world: World) -> None:
    """A drafter that lookup has left behind waits for the step on its way; the choice must not be lost with it."""

    class Turns(Ways):
        asked: list[Way] = []  # noqa: RUF012

        def choose(self) -> Way:
            self.asked.append("block" if len(self.asked) % 4 == 3 else "lookup")
            return self.asked[-1]

    pair, sampler, taken = world.pair, Sampler(SamplingParams()), list[str]()
    pair.forget()
    pair.ways = Turns(dict.fromkeys(WAYS, 1.0))
    pair.prefill([5, 6, 7])
    step = pair.runner.step

    def noted(way: Way, greedy: bool, length: int) -> Any:
        taken.append(way)
        return step(way, greedy, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.runner, "step", noted)
        for _ in range(10):
            pair.step(sampler, 16)
    assert taken.count("block") == Turns.asked.count("block") > 1
