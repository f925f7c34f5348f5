"""Handle Ctrl-C: the first stops the generation, the second ends the command."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import FrameType
from typing import Self, TypeVar

T = TypeVar("T")


class Interrupt:
    """Context manager: the first SIGINT sets `is_set`, and ends `each` or calls `stop`; the next one is raised."""

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        self.is_set, self._stop = False, stop
        self._is_repeated = self._is_waiting = False

    def each(self, items: Generator[T, None, None]) -> Iterator[T]:
        """Yield the items until SIGINT, which also interrupts the wait for an item; then close the generator."""
        with closing(items):
            while not self.is_set:
                try:
                    self._is_waiting = True
                    item = next(items)
                except StopIteration:
                    return
                except KeyboardInterrupt:
                    if self._is_repeated:
                        raise
                    return
                finally:
                    self._is_waiting = False
                yield item

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_repeated = self.is_set
        self.is_set = True
        if self._is_repeated or self._is_waiting:
            raise KeyboardInterrupt
        self._stop()

    def __enter__(self) -> Self:
        self.is_set = False
        self._previous_handler = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)
