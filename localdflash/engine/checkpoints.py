"""Checkpoints of recurrent states, which cannot be cropped to a shorter length like a KV cache.

A copy is stored at the end of each prompt, because the next prompt often continues there, and after every
`SPACING_TOKENS` of a prompt. A sequence that is rolled back continues from the longest remaining checkpoint.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

MAX_CHECKPOINTS, SPACING_TOKENS = 4, 512

State = TypeVar("State")


class Checkpoints(Generic[State]):
    """Copies of states by sequence length."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def should_add(self, length: int, prompt_ended: bool) -> bool:
        """Return whether to add a checkpoint at this length."""
        return length not in self._states and (prompt_ended or length >= max(self._states, default=0) + SPACING_TOKENS)

    def add(self, length: int, state: State) -> None:
        """Add a copy of the state; if there are `MAX_CHECKPOINTS` already, drop the shortest."""
        if len(self._states) == MAX_CHECKPOINTS:
            del self._states[min(self._states)]
        self._states[length] = state

    def drop_after(self, length: int) -> None:
        """Drop checkpoints longer than `length`."""
        self._states = {at: state for at, state in self._states.items() if at <= length}

    @property
    def states(self) -> Iterable[State]:
        """Copies of the states."""
        return self._states.values()

    def longest(self) -> tuple[int, State] | None:
        """Return the length and the state of the longest checkpoint; None if there is none."""
        return max(self._states.items(), key=lambda item: item[0], default=None)
