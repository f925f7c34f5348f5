"""Sequences that leave the device while it works: what is put aside is whole, and nobody waits for more than needed."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from localdflash.cuda.leaving import Leaving, Outbox
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.cuda.histories import World, tiny_world

CHAT = [3, 5, 7, 11] * 30


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with tiny_world(tmp_path_factory.mktemp("tiny")) as world:
        yield world


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Only the first block, of some fifty slots, leaves before the gate is opened."""
    monkeypatch.setattr("localdflash.cuda.leaving.STAGE", 1 << 17)
    gate, blocks = threading.Event(), Leaving.blocks

    def held(self: Leaving, stage: torch.Tensor) -> Iterator[int]:
        for number, left in enumerate(blocks(self, stage)):
            assert number == 0 or gate.wait(30)
            yield left

    monkeypatch.setattr(Leaving, "blocks", held)
    yield gate
    gate.set()


def is_right(world: World, prompt: list[int]) -> bool:
    """Whether what follows the prompt is what plain decoding gives."""
    world.pair.step(Sampler(SamplingParams()), 16)
    return world.pair.ids[len(prompt) :] == world.right(world.pair.ids, len(prompt), SamplingParams())


def test_a_completion_does_not_wait_for_a_chat_to_leave(world: World, gate: threading.Event) -> None:
    pair, completion, longer = world.pair, [9, 8], [8, 9] * 40
    pair.prefill(CHAT)
    state = pair.save()
    pair.prefill(completion)
    assert is_right(world, completion)
    arrived = threading.Thread(target=state.arrived)
    reached = threading.Thread(target=pair.prefill, args=(longer,))
    for waits in (arrived, reached):  # the bytes, and a prompt that reaches slots which are still there
        waits.start()
        waits.join(0.2)
        assert waits.is_alive()
    gate.set()
    for waits in (arrived, reached):
        waits.join(30)
    assert is_right(world, longer)
    pair.load(state)
    assert pair.prefill([*CHAT, 2]) == 1
    assert is_right(world, [*CHAT, 2])


@pytest.mark.parametrize("slots", [0, 1, 7, 100])
def test_rows_arrive_tensor_by_tensor(slots: int) -> None:
    torch.manual_seed(slots)
    groups: list[list[torch.Tensor]] = [[torch.randn(120, 2, 4), torch.randn(120, 3).half()], [torch.randn(120, 1)], []]
    leaving = Leaving(groups, slots)
    leaving.move(torch.empty(200, dtype=torch.uint8))  # four slots a block
    leaving.arrived()
    leaving.wait_for(1000)
    whole = [b"".join(part[:slots].numpy().tobytes() for part in group) for group in groups]
    assert leaving.saved == whole


def test_what_fails_on_the_way_is_told_to_whoever_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(self: Leaving, stage: Any) -> Iterator[int]:
        yield 3
        raise RuntimeError("lost")

    monkeypatch.setattr(Leaving, "blocks", blocks)
    leaving = Outbox(torch.device("cpu")).send([[torch.zeros(9, 1)]], 9)
    leaving.wait_for(9)  # nothing more leaves: the slots may be written over
    with pytest.raises(RuntimeError, match="lost"):
        leaving.arrived()
