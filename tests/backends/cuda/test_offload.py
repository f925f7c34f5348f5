"""Sequences offloaded while the device works: their states are complete, and requests wait only for what they need."""

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch

from localdflash.backends.cuda.offload import OffloadedSequence, restore
from localdflash.engine.pair import StateLost
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.backends.cuda.histories import World, tiny_world

CHAT = [3, 5, 7, 11] * 30


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with tiny_world(tmp_path_factory.mktemp("tiny")) as world:
        yield world


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Copy only the first block, of about fifty slots, before the gate is opened."""
    monkeypatch.setattr("localdflash.backends.cuda.offload.STAGING_BYTES", 1 << 17)
    gate, blocks = threading.Event(), OffloadedSequence.blocks

    def gated_blocks(self: OffloadedSequence, stage: torch.Tensor) -> Iterator[int]:
        for number, left in enumerate(blocks(self, stage)):
            assert number == 0 or gate.wait(30)
            yield left

    monkeypatch.setattr(OffloadedSequence, "blocks", gated_blocks)
    yield gate
    gate.set()


def is_right(world: World, prompt: list[int]) -> bool:
    """Return whether the continuation is that of autoregressive decoding."""
    world.pair.step(Sampler(SamplingParams()), 16)
    return world.pair.ids[len(prompt) :] == world.right(world.pair.ids, len(prompt), SamplingParams())


def test_completion_does_not_wait_for_offloading_of_a_chat(world: World, gate: threading.Event) -> None:
    pair, completion, longer = world.pair, [9, 8], [8, 9] * 40
    pair.prefill(CHAT)
    state = pair.save()
    pair.prefill(completion)
    assert is_right(world, completion)
    wait = threading.Thread(target=state.wait)
    reached = threading.Thread(target=pair.prefill, args=(longer,))
    for waits in (wait, reached):  # the bytes, and a prompt that reaches slots which are still there
        waits.start()
        waits.join(0.2)
        assert waits.is_alive()
    gate.set()
    for waits in (wait, reached):
        waits.join(30)
    assert is_right(world, longer)
    pair.load(state)
    assert pair.prefill([*CHAT, 2]) == 1
    assert is_right(world, [*CHAT, 2])


def failing(message: str) -> Callable[..., Iterator[int]]:
    """Yield the first block; the others are lost."""

    def blocks(self: OffloadedSequence, stage: Any) -> Iterator[int]:
        yield 3
        raise RuntimeError(message)

    return blocks


def test_lost_state_is_dropped_and_recomputed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix cache drops the state; requests for it succeed, and the pair works."""
    pair, prefixes, other = world.pair, PrefixCache(1 << 30), [9, 8] * 30

    def ask(ids: list[int]) -> int:
        prefixes.load_longest(pair, ids)
        return pair.prefill(ids)

    pair.forget()
    with monkeypatch.context() as patch:
        patch.setattr(OffloadedSequence, "blocks", failing("no pinned memory is left\nand more of that"))
        ask(CHAT)
        ask(other)  # the chat is offloaded, and lost
        (state,) = prefixes._states.values()
        for _ in range(2):
            with pytest.raises(StateLost, match=r"^no pinned memory is left$"):
                pair.load(state)
        assert pair.ids == other
    assert ask(CHAT) == len(CHAT) - 1
    assert is_right(world, CHAT)
    assert ask([*other, 1]) == 1
    assert ask([*CHAT, 1]) <= 1  # offloaded again


@pytest.mark.parametrize(("slots", "stage"), [(0, 30), (7, 2), (100, 30)])
def test_offloaded_sequence_is_restored(slots: int, stage: int) -> None:
    torch.manual_seed(slots)
    groups: list[list[torch.Tensor]] = [[torch.randn(120, 2, 4), torch.randn(120, 3).half()], [torch.randn(120, 1)]]
    leaving = OffloadedSequence(groups, slots)
    leaving.move(torch.empty(200, dtype=torch.uint8))  # four slots a block
    leaving.wait_for(1000)
    assert leaving.saved == [b"".join(part[:slots].numpy().tobytes() for part in group) for group in groups]
    back = [[torch.full_like(part, 7) for part in group] for group in groups]
    saved: list[bytes | bytearray] = [leaving.saved[0], bytes(leaving.saved[1])]  # from the disk they are bytes
    restore(back, saved, slots, torch.empty(stage, dtype=torch.uint8))
    for part, original in zip(chain(*back), chain(*groups), strict=True):
        assert torch.equal(part[:slots], original[:slots])
        assert (part[slots:] == 7).all()
