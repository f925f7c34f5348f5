"""Ctrl-C stops what is being generated; a second one leaves."""

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """Within this context the first SIGINT sets a flag, the next raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.set = False

    def __call__(self) -> bool:
        """Whether the flag is set: a `Cancelled`."""
        return self.set

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.set:
            raise KeyboardInterrupt
        self.set = True

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
