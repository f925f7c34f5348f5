"""Two pairs on one machine: one step at a time, a completion between two steps of a chat, and the same texts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localdflash.engine.compute_lock import ComputeLock
from localdflash.engine.generate import Request
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.scheduler import Scheduler
from tests.engine.test_scheduler import PATIENCE, Gated, Watched, chat, completion, make_pair, offline

__all__ = ["offline"]

Make = Callable[..., Any]


@contextmanager
def running(pair: Gated, compute_lock: ComputeLock) -> Iterator[Scheduler]:
    made = Scheduler(pair, PrefixCache(1 << 20), limit=8, compute_lock=compute_lock)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        pair.gate.release()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def pairs(fake_target: Make, fake_drafter: Make, eager: Make) -> list[Gated]:
    """That of the chat, and that of completions."""
    return [make_pair(fake_target, fake_drafter, eager) for _ in range(2)]


@pytest.fixture
def both(pairs: list[Gated]) -> Iterator[list[Scheduler]]:
    compute_lock = ComputeLock()
    with running(pairs[0], compute_lock) as first, running(pairs[1], compute_lock) as second:
        yield [first, second]


def test_a_completion_of_another_pair_goes_between_two_steps_of_a_chat(
    pairs: list[Gated], both: list[Scheduler], offline: Callable[[Request], list[int]]
) -> None:
    log: list[str] = []
    talk, filled = Watched(chat(30), log, "chat"), Watched(completion(), log, "completion", urgent=True)
    pairs[0].gate.hold()
    both[0].submit(talk.job)
    pairs[0].gate.until_held()
    both[1].submit(filled.job)
    assert not filled.ended.wait(0.05), "two pairs computed at the same time"
    pairs[0].gate.step()  # the chat's first step; the completion goes before the second, all of it
    assert filled.wait().tokens == offline(filled.request)
    assert log[0] == "chat"
    assert set(log[1:]) == {"completion"}
    pairs[0].gate.release()
    assert talk.wait().tokens == offline(talk.request)
    assert both[0].totals.preempted == 0, "its own pair keeps its place"
    assert talk.request.computed_tokens == len(talk.request.ids) - 1, "nothing is computed again"


def test_a_chat_in_the_middle_of_its_prompt_steps_aside(pairs: list[Gated], both: list[Scheduler]) -> None:
    """Between two chunks of a long prompt, as between two steps."""
    order: list[str] = []
    chunk, begun, go_on = pairs[0].target.extend, threading.Event(), threading.Event()

    def extend(ids: Any) -> Any:
        order.append("chunk")
        if len(order) == 1:
            begun.set()
            assert go_on.wait(PATIENCE)
        return chunk(ids)

    pairs[0].target.extend = extend  # type: ignore[method-assign]
    talk = Watched(Request([1, 2, 3] * 60, 2))
    filled = Watched(completion(), order, "completion", urgent=True)
    both[0].submit(talk.job)
    assert begun.wait(PATIENCE)
    both[1].submit(filled.job)
    while not both[1].running or not both[1]._compute_lock._urgent:
        pass
    go_on.set()
    filled.wait()
    talk.wait()
    assert order.index("completion") == 1, order
    assert order.count("chunk") > 2


def test_an_error_gives_the_turn_back(pairs: list[Gated], both: list[Scheduler]) -> None:
    pairs[1].error = RuntimeError("a step broke")
    filled = Watched(completion(), urgent=True)
    both[1].submit(filled.job)
    assert isinstance(filled.wait().error, RuntimeError)
    talk = Watched(chat(5))
    both[0].submit(talk.job)
    assert talk.wait().error is None
