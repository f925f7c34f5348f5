"""Global memory as seen by the programs of a launch: immediately, or as late as PTX's memory model allows.

A late program reads what was there when it started, and others see its stores after the launch. Both change where it
synchronises: a release hands out the stores of its own thread, and those of other threads that a barrier of the block
lies behind; an acquire shows what others have handed out, to its own thread, and to all of them after a barrier. Caches
are no part of that model, so `.cg` makes no load safe here.
"""

import random
from dataclasses import dataclass

import numpy as np

from tests.kernels.cuda.ptx_arithmetic import Array


class SharedView:
    """View of a program whose stores are visible immediately, and that sees all stores."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory

    def load(self, at: Array, threads: Array) -> Array:
        """Bytes uint8 [n, size] at addresses int64 [n, size], each row requested by a thread."""
        return self.memory[at]

    def store(self, at: Array, value: Array, threads: Array) -> None:
        """Write bytes at addresses."""
        self.memory[at] = value

    def barrier(self) -> None:
        """Synchronise all threads of the program."""

    def release(self, threads: Array) -> None:
        """Publish the stores of these threads (bool [threads of a program]) and those before their barriers."""

    def acquire(self, threads: Array) -> None:
        """Make published stores visible to these threads."""

    def exchange(self, at: Array, value: Array) -> None:
        """Write bytes [size] at addresses [size] by an atomic instruction, which reads `memory` itself."""
        self.memory[at] = value

    def end(self) -> None:
        """End the launch: all stores become visible."""


@dataclass
class _Stored:
    at: Array  # int64 [n, size]
    value: Array  # uint8 [n, size]
    threads: Array  # int64 [n]
    barriers: int  # barriers passed by then


class LateView(SharedView):
    """View of a program of `threads` threads whose stores, and view of other stores, are as late as allowed."""

    def __init__(self, memory: Array, threads: int) -> None:
        super().__init__(memory)
        self._seen, self._fresh = memory.copy(), memory
        self._acquired = np.zeros(threads, bool)  # threads that see `_fresh` by now
        self._stored: list[_Stored] = []
        self._barriers = 0

    def load(self, at: Array, threads: Array) -> Array:
        """See `SharedView`."""
        if not self._acquired.any():
            return self._seen[at]
        return np.where(self._acquired[threads][:, None], self._fresh[at], self._seen[at])

    def store(self, at: Array, value: Array, threads: Array) -> None:
        """See `SharedView`."""
        self._stored.append(_Stored(at, value, threads, self._barriers))
        self._show(at, value)

    def barrier(self) -> None:
        """See `SharedView`."""
        self._barriers += 1
        if self._acquired.any():
            self._seen = self._fresh
            self._acquired[:] = False

    def release(self, threads: Array) -> None:
        """See `SharedView`."""
        remaining = []
        for each in self._stored:
            out = threads[each.threads] | (each.barriers < self._barriers)
            self.memory[each.at[out]] = each.value[out]
            if not out.all():
                remaining.append(_Stored(each.at[~out], each.value[~out], each.threads[~out], each.barriers))
        self._stored = remaining

    def acquire(self, threads: Array) -> None:
        """See `SharedView`."""
        self._fresh = self.memory.copy()
        self._acquired |= threads
        for each in self._stored:
            self._fresh[each.at] = each.value

    def exchange(self, at: Array, value: Array) -> None:
        """See `SharedView`."""
        assert not any(np.isin(at, each.at).any() for each in self._stored), "an atomic behind an ordinary store"
        super().exchange(at, value)
        self._show(at, value)

    def end(self) -> None:
        """See `SharedView`."""
        for each in self._stored:
            self.memory[each.at] = each.value
        self._stored = []

    def _show(self, at: Array, value: Array) -> None:
        self._seen[at] = value
        if self._acquired.any():
            self._fresh[at] = value


def some_view(memory: Array, threads: int, chance: random.Random) -> SharedView:
    """Return either view at random: a fault may show with only one."""
    return LateView(memory, threads) if chance.random() < 0.7 else SharedView(memory)
