"""Global memory as programs of a launch see it: at once, or as late as PTX's memory model allows.

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
    """A program whose stores everybody sees at once, and that sees all of others."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory

    def load(self, at: Array, threads: Array) -> Array:
        """Bytes uint8 [n, size] at addresses int64 [n, size], each row asked for by a thread."""
        return self.memory[at]

    def store(self, at: Array, value: Array, threads: Array) -> None:
        """Write bytes at addresses."""
        self.memory[at] = value

    def barrier(self) -> None:
        """All threads of the program meet."""

    def release(self, threads: Array) -> None:
        """Hand out what these threads (bool [threads of a program]) and those before their barriers have stored."""

    def acquire(self, threads: Array) -> None:
        """These threads see what others have handed out."""

    def exchange(self, at: Array, value: Array) -> None:
        """An atomic instruction writes bytes [size] at addresses [size]; it reads `memory` itself."""
        self.memory[at] = value

    def end(self) -> None:
        """The launch is over: everything is seen."""


@dataclass
class _Stored:
    at: Array  # int64 [n, size]
    value: Array  # uint8 [n, size]
    threads: Array  # int64 [n]
    barriers: int  # that were behind the program by then


class LateView(SharedView):
    """A program for `threads` threads that neither shows nor sees anything before it has to."""

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
        kept = []
        for each in self._stored:
            out = threads[each.threads] | (each.barriers < self._barriers)
            self.memory[each.at[out]] = each.value[out]
            if not out.all():
                kept.append(_Stored(each.at[~out], each.value[~out], each.threads[~out], each.barriers))
        self._stored = kept

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
    """One or the other: a fault may show with either."""
    return LateView(memory, threads) if chance.random() < 0.7 else SharedView(memory)
