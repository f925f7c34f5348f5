"""Random histories of a pair on a software GPU, where work may run only when the host waits for it.

Half of the histories run work as late as possible, the others in random order; each captures its own graphs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from localdflash.backends.cuda.offload import OffloadedSequence, Offloader
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.runner import Runner
from localdflash.kernels.cuda.rounds import STEP
from tests.backends.cuda.histories import STAGING_BYTES, World, any_history, fuzz, play, tiny_world
from tests.support.software_gpu import CUDA, SoftwareGpu, poisoned

GPU = SoftwareGpu()
LATE = None  # work runs only when it is waited for


def accept_and_forget(draft: Tensor, choice: Tensor, tokens: Tensor, state: Tensor, records: Tensor) -> None:
    """Run `accept`, and poison all records but the two that may be in flight, so that reading another one fails."""
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


class LateSequence(OffloadedSequence):
    """Sequence whose slots are copied only when they are waited for, or at random all at once."""

    def __init__(self, groups: Sequence[Sequence[Tensor]], slots: int) -> None:
        super().__init__(groups, slots)
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._turns = self.blocks(torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True))
        self.wait = self._copy_all
        if GPU.chance and GPU.chance.random() < 0.5:
            self.wait()

    def _copy_block(self) -> bool:
        with torch.cuda.stream(self._side):
            copied = next(self._turns, None)
        self._free_slots(copied or self.slots)
        return copied is not None

    def _copy_all(self) -> None:
        while self._copy_block():
            pass

    def wait_for(self, slots: int) -> None:
        """See `OffloadedSequence`."""
        while self._copied < min(slots, self.slots):
            self._copy_block()


class LateOffloader(Offloader):
    """Offloader without a thread."""

    def send(self, groups: Sequence[Sequence[Tensor]], slots: int) -> OffloadedSequence:
        """See `Offloader`."""
        return LateSequence(groups, slots)


def play_late(world: World, acts: list[Any], seed: int, pace: int | None) -> None:
    """Play a history with runners that have captured no graph yet."""
    GPU.restart(pace)
    with GPU.on():
        for pair in (world.pair, world.other):
            pair.runner = Runner(pair.stepper)
            pair.runner._offloader = LateOffloader(CUDA)
        play(world, acts, seed)


@fuzz
@any_history
def test_random_histories_give_correct_tokens(world: World, acts: list[Any], seed: int) -> None:
    play_late(world, acts, seed, seed if seed % 2 else LATE)


@pytest.mark.nightly
@settings(fuzz, max_examples=40)
@any_history
def test_more_histories(world: World, acts: list[Any], seed: int) -> None:
    play_late(world, acts, seed, seed if seed % 2 else LATE)
