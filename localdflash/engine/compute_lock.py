"""Lock that lets only one of a machine's pairs compute at a time. Between steps and chunks, urgent work goes first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ComputeLock:
    """Lock shared by the schedulers of one machine; threads with urgent work get it first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_held = False
        self._waiting_urgent = 0  # threads with urgent work that wait

    @contextmanager
    def hold(self, urgent: bool) -> Iterator[None]:
        """Wait for the lock, and hold it in the `with` block."""
        self._acquire(urgent)
        try:
            yield
        finally:
            self._release()

    def yield_to_urgent(self) -> None:
        """Release the lock, held for work that is not urgent, and take it again after all urgent work."""
        if self._waiting_urgent:
            self._release()
            self._acquire(urgent=False)

    def _acquire(self, urgent: bool) -> None:
        with self._changed:
            self._waiting_urgent += int(urgent)
            try:
                self._changed.wait_for(lambda: not self._is_held and (urgent or not self._waiting_urgent))
            finally:
                self._waiting_urgent -= int(urgent)
            self._is_held = True

    def _release(self) -> None:
        with self._changed:
            self._is_held = False
            self._changed.notify_all()
