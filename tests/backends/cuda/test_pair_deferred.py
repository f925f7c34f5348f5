"""The pair's fuzz on a GPU in software: what was started has not happened before somebody waits for it.

Half of the histories run as late as can be, the others in an order by chance; graphs are captured anew in each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from localdflash.backends.cuda.leaving import Leaving, Outbox
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.runner import Runner
from localdflash.kernels.cuda.rounds import STEP
from tests.backends.cuda.histories import STAGE, World, any_history, fuzz, play, tiny_world
from tests.support.software_gpu import CUDA, SoftwareGpu, poisoned

GPU = SoftwareGpu()
LATE = None  # nothing happens before it is waited for


def accept_and_forget(draft: Tensor, choice: Tensor, tokens: Tensor, state: Tensor, records: Tensor) -> None:
    """Accept, and keep no record but the two that may be in flight: who reads another one shall see it."""
    newest = int(state[STEP]) % len(records)
    REFERENCES.accept(draft, choice, tokens, state, records)
    two = records[[newest - 1, newest]]
    poisoned(records)[[newest - 1, newest]] = two


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    ops = GPU.ops(replace(REFERENCES, accept=accept_and_forget))
    with tiny_world(tmp_path_factory.mktemp("tiny"), ops, GPU.launch) as world:
        for pair in (world.pair, world.other):
            GPU.own(pair.stepper)
            pair.stepper.device = CUDA
        yield world


class LateLeaving(Leaving):
    """A sequence of which a slot leaves no sooner than somebody waits for it; or, by chance, all of them at once."""

    def __init__(self, groups: Sequence[Sequence[Tensor]], slots: int) -> None:
        super().__init__(groups, slots)
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._turns = self.blocks(torch.empty(STAGE, dtype=torch.uint8, pin_memory=True))
        self.arrived = self._leave_at_once
        if GPU.chance and GPU.chance.random() < 0.5:
            self.arrived()

    def _leave(self) -> bool:
        with torch.cuda.stream(self._side):
            left = next(self._turns, None)
        self._free_slots(left or self.slots)
        return left is not None

    def _leave_at_once(self) -> None:
        while self._leave():
            pass

    def wait_for(self, slots: int) -> None:
        """See `Leaving`."""
        while self._left < min(slots, self.slots):
            self._leave()


class LateOutbox(Outbox):
    """Without the thread."""

    def send(self, groups: Sequence[Sequence[Tensor]], slots: int) -> Leaving:
        """See `Outbox`."""
        return LateLeaving(groups, slots)


def play_late(world: World, acts: list[Any], seed: int, pace: int | None) -> None:
    """A history with runners that have captured nothing yet."""
    GPU.restart(pace)
    with GPU.on():
        for pair in (world.pair, world.other):
            pair.runner = Runner(pair.stepper)
            pair.runner._outbox = LateOutbox(CUDA)
        play(world, acts, seed)


@fuzz
@any_history
def test_any_history_leads_to_the_right_tokens(world: World, acts: list[Any], seed: int) -> None:
    play_late(world, acts, seed, seed if seed % 2 else LATE)


@pytest.mark.nightly
@settings(fuzz, max_examples=40)
@any_history
def test_more_histories(world: World, acts: list[Any], seed: int) -> None:
    play_late(world, acts, seed, seed if seed % 2 else LATE)
