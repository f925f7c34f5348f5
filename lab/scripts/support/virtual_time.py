"""Runs a coroutine in virtual time: a wait is over at once, and the clocks have moved on by as much.

For what neither waits for a thread nor for another process: nothing else moves these clocks.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """Instead of waiting, it says that the time has come."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is due")
        self.now += max(timeout, 0.0)
        return super().select(0)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; `time.perf_counter` and `time.monotonic` are the loop's own time in this thread."""
    clock, thread = _Clock(), threading.get_ident()

    def here(real: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock.now if threading.get_ident() == thread else real()

    loop = asyncio.SelectorEventLoop(clock)
    with (
        mock.patch.object(loop, "time", clock.time),
        mock.patch.object(time, "perf_counter", here(time.perf_counter)),
        mock.patch.object(time, "monotonic", here(time.monotonic)),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        return runner.run(coroutine)
