"""Ctrl-C stops the generation; a second Ctrl-C ends the command."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import FrameType
from typing import Self, TypeVar

T = TypeVar("T")


class Interrupt:
    """Context in which the first SIGINT sets `set`, calls `stop` and ends `each`; the next raises KeyboardInterrupt."""

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        self.set = False
        self._stop = stop
        self._again = self._waiting = False

    def each(self, items: Generator[T, None, None]) -> Iterator[T]:
        """Yield the items up to the first SIGINT, even while waiting for the next one; the generator is then closed."""
        with closing(items):
            while not self.set:
                try:
                    self._waiting = True
                    item = next(items)
                except StopIteration:
                    return
                except KeyboardInterrupt:
                    if self._again:
                        raise
                    return
                finally:
                    self._waiting = False
                yield item

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._again = self.set
        self.set = True
        if self._again or self._waiting:
            raise KeyboardInterrupt
        self._stop()

    def __enter__(self) -> Self:
        self.set = False
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
