"""The pair's fuzz on a GPU in software: what was started has not happened before somebody waits for it.

Half of the histories run as late as can be, the others in an order by chance; graphs are captured anew in each.
Faults that would go unnoticed on a CPU are put in on purpose, and found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from localdflash.backends.cuda.leaving import Leaving, Outbox
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.runner import Runner
from localdflash.base.errors import LocaldflashError
from localdflash.kernels.cuda.rounds import STEP
from tests.backends.cuda.histories import ACTS, FAILING, STAGE, History, World, fuzz, play, tiny_world
from tests.support.software_gpu import CUDA, Event, SoftwareGpu, Stream, poisoned

GPU = SoftwareGpu()
few = settings(fuzz, max_examples=10)
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


@few
@given(st.lists(st.sampled_from(ACTS), min_size=4, max_size=14), st.integers(0, 2**32))
def test_any_history_leads_to_the_right_tokens(world: World, acts: list[Any], seed: int) -> None:
    play_late(world, acts, seed, seed if seed % 2 else LATE)


@few
@given(st.lists(st.sampled_from(FAILING), min_size=4, max_size=14), st.integers(0, 2**32))
def test_what_fails_in_between_leaves_nothing_behind(world: World, acts: list[Any], seed: int) -> None:
    play_late(world, acts, seed, seed if seed % 2 else LATE)


def finds(world: World, acts: list[Any]) -> bool:
    """Whether some pace shows that something is wrong."""
    for pace in PACES:
        try:
            play_late(world, acts, 0, pace)
        except (AssertionError, IndexError, LocaldflashError):
            return True
    return False


@pytest.mark.parametrize("acts", [LONG, MOVING])
def test_the_histories_that_find_the_faults_are_right_without(world: World, acts: list[Any]) -> None:
    assert not finds(world, acts)


def test_a_record_that_is_read_before_its_step_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "synchronize", lambda self: None)
    assert finds(world, LONG)


def test_records_that_are_written_over_in_flight_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in (world.pair, world.other):
        monkeypatch.setattr(pair.stepper, "records", pair.stepper.records[:1])
    assert finds(world, LONG)


def test_slots_that_are_written_over_before_they_left_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateLeaving, "wait_for", lambda self, slots: None)
    assert finds(world, MOVING)


def test_a_sequence_that_leaves_before_it_is_computed_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "synchronize", lambda self: None)
    assert finds(world, MOVING)


def test_a_capture_whose_trial_does_not_wait_for_the_step_in_flight_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stream, "wait_stream", lambda self, other: None)
    assert finds(world, LONG)


def test_a_capture_that_leaves_the_state_changed_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Runner._capture

    def moved(self: Runner, sequence: Any) -> Any:
        graph = capture(self, sequence)
        sequence()
        return graph

    monkeypatch.setattr(Runner, "_capture", moved)
    assert finds(world, LONG)


def test_the_host_may_not_compute_on_the_device(world: World) -> None:
    with GPU.on(), pytest.raises(AssertionError, match="add"):
        world.pair.stepper.state + 1
