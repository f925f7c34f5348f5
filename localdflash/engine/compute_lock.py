"""Whose turn it is to compute, where one machine runs several pairs: one step at a time, urgent work first.

A job that is not urgent steps aside between two steps, and between two chunks of its prefill, for as long as urgent
work of another pair goes on. Its own pair keeps its sequence meanwhile, so it goes on as if nothing had happened.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ComputeLock:
    """What the schedulers of one machine share; the threads of their engines take turns by it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0  # that wait

    @contextmanager
    def taken(self, urgent: bool) -> Iterator[None]:
        """Hold the turn, after waiting for it."""
        self._take(urgent)
        try:
            yield
        finally:
            self._give()

    def yield_to_urgent(self) -> None:
        """For whoever holds the turn without being urgent: let all urgent work go before."""
        if not self._urgent:
            return
        self._give()
        self._take(False)

    def _take(self, urgent: bool) -> None:
        with self._changed:
            self._urgent += urgent
            try:
                self._changed.wait_for(lambda: not self._taken and (urgent or not self._urgent))
            finally:
                self._urgent -= urgent
            self._taken = True

    def _give(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()
