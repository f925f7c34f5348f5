"""Run a coroutine in virtual time: waits end at once, and the clocks advance by their duration.

The coroutine must not wait for threads or processes, since only waits of the loop advance the clocks.
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
    """Selector that advances its clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("virtual time: all tasks wait, and no timer is due")
        self.now += max(timeout, 0.0)
        return super().select(0)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result; in this thread `time.perf_counter` and `time.monotonic` are the loop's time."""
    clock, thread = _Clock(), threading.get_ident()

    def in_this_thread(real: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock.now if threading.get_ident() == thread else real()

    loop = asyncio.SelectorEventLoop(clock)
    with (
        mock.patch.object(loop, "time", clock.time),
        mock.patch.object(time, "perf_counter", in_this_thread(time.perf_counter)),
        mock.patch.object(time, "monotonic", in_this_thread(time.monotonic)),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        return runner.run(coroutine)
