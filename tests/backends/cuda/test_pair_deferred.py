"""The pair's fuzz on a GPU in software: what was started has not happened before somebody waits for it.

Half of the histories run as late as can be, the others in an order by chance; graphs are captured anew in each.
Faults that would go unnoticed on a CPU are put in on purpose, and found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from localdflash.backends.cuda.leaving import Leaving, Outbox
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.runner import Runner
from localdflash.base.errors import LocaldflashError
from localdflash.kernels.cuda.rounds import STEP
from tests.backends.cuda.histories import STAGE, History, World, any_history, fuzz, play, tiny_world
from tests.support.software_gpu import CUDA, Event, SoftwareGpu, Stream, poisoned

GPU = SoftwareGpu()
LATE = None  # nothing happens before it is waited for
PACES = (LATE, 1, 2, 3, 4, 5)
LONG = [History.prefill, *[History.steps] * 6, History.save, History.steps, History.rollback, *[History.steps] * 6]
MOVING = [History.prefill, *[History.steps] * 4, History.save, History.elsewhere, History.load, History.steps] * 3


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
        if GPU.chance and GPU.chance.random() < 0.5:
            self.arrived()

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            with torch.cuda.stream(self._side):
                left = next(self._turns, None)
            self._tell(left or self.slots, done=left is None)


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


def finds(world: World, acts: list[Any]) -> bool:
    """Return whether some pace shows that something is wrong."""
    for pace in PACES:
        try:
            play_late(world, acts, 0, pace)
        except (AssertionError, IndexError, LocaldflashError):
            return True
    return False


def capture_and_step(self: Runner, sequence: Any, capture: Any = Runner._capture) -> Any:
    graph = capture(self, sequence)
    sequence()
    return graph


FAULTS: dict[str, tuple[Any, str, Any, list[Any]]] = {
    "a record is read before its step": (Event, "synchronize", lambda self: None, LONG),
    "slots are written over before they left": (LateLeaving, "wait_for", lambda self, slots: None, MOVING),
    "a sequence leaves before it is computed": (Runner, "synchronize", lambda self: None, MOVING),
    "a capture's trial does not wait for the step in flight": (Stream, "wait_stream", lambda self, other: None, LONG),
    "a capture leaves the state changed": (Runner, "_capture", capture_and_step, LONG),
}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, acts = FAULTS[fault]
    assert not finds(world, acts)
    monkeypatch.setattr(owner, name, broken)
    assert finds(world, acts)


@pytest.mark.nightly
def test_records_that_are_written_over_in_flight_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in (world.pair, world.other):
        monkeypatch.setattr(pair.stepper, "records", pair.stepper.records[:1])
    assert finds(world, LONG)


def test_the_host_may_not_compute_on_the_device(world: World) -> None:
    with GPU.on(), pytest.raises(AssertionError, match="add"):
        world.pair.stepper.state + 1
