"""States of a sequence at a few of its lengths, for caches that go on but never back: those of recurrent layers.

One is kept where a prompt ended, for the next one often goes on there, and wherever so many tokens lie behind the last
one. A sequence that goes back goes to the longest of them that is not too long, and computes again from there.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

MOST, APART = 4, 512  # how many are kept, and how many tokens of a prompt lie between two

State = TypeVar("State")


class Checkpoints(Generic[State]):
    """Copies of states by their length."""

    def __init__(self) -> None:
        self._kept: dict[int, State] = {}

    def wants(self, length: int, prompt_ended: bool) -> bool:
        """Return whether a state of this length is worth a copy."""
        return length not in self._kept and (prompt_ended or length >= max(self._kept, default=0) + APART)

    def keep(self, length: int, state: State) -> None:
        """Keep a copy; the shortest one makes room for it."""
        if len(self._kept) == MOST:
            del self._kept[min(self._kept)]
        self._kept[length] = state

    def drop_after(self, length: int) -> None:
        """Drop what is longer."""
        self._kept = {at: state for at, state in self._kept.items() if at <= length}

    @property
    def states(self) -> Iterable[State]:
        """All that are kept."""
        return self._kept.values()

    def newest(self) -> tuple[int, State] | None:
        """The longest one, with its length."""
        return max(self._kept.items(), key=lambda item: item[0], default=None)
