"""How fast an answer came by our own clock, for servers that do not tell."""

import time
from collections.abc import Callable

LEAST = 0.05  # seconds; what came at once, as out of a cache or through a proxy that waits, has no pace


class Pace:
    """Counts from the first text on: what is before it is the prompt's time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first: float | None = None
        self._last = 0.0

    def arrived(self) -> None:
        """Take note of text."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last

    def of(self, tokens: int) -> float | None:
        """Tokens a second, of so many in all; the first came with the first text. None if that cannot be said."""
        if self._first is None or tokens < 2 or self._last - self._first < LEAST:
            return None
        return (tokens - 1) / (self._last - self._first)
