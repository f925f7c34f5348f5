"""Target with a recurrent state that records the tokens in its state: a wrong rollback changes the text."""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.draft import Draft
from localdflash.engine.pair import TargetFeatures, Verification

VOCABULARY = 40


def logits_after(ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits [V] after a whole sequence, different for every sequence."""
    seed = zlib.crc32(np.array(ids, np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(VOCABULARY, np.float32)


def text_after(ids: Sequence[int], count: int) -> list[int]:
    """Return the text of single-token decoding, without an engine."""
    text = list(ids)
    for _ in range(count):
        text.append(int(logits_after(text).argmax()))
    return text[len(ids) :]


class CountingTarget:
    """See `Target`. A rollback undoes all rows but one of the last forward, once; else it returns to a checkpoint.

    Checkpoints are saved every `apart` tokens of a prompt and at the ends of prompts. Wrong calls fail.
    """

    is_recurrent, vocab_size, context, max_width = True, VOCABULARY, 200, 9

    def __init__(self, apart: int) -> None:
        self._apart = apart
        self.state: list[int] = []  # tokens of the state
        self._pending: list[int] = []  # verified rows, until `keep`; already part of the state
        self._undoes = 0
        self._checkpoints: dict[int, list[int]] = {}
        self.went_back: list[int] = []  # tokens lost by returning to checkpoints

    @property
    def length(self) -> int:
        return len(self.state) - len(self._pending)

    def extend(self, ids: Sequence[int]) -> TargetFeatures:
        assert not self._pending, "extend between verify and keep"
        taps = self._run(ids)
        if self.length - max(self._checkpoints, default=0) >= self._apart:
            self._checkpoints[self.length] = list(self.state)
        return taps

    def verify(self, anchor: int, draft: Draft) -> Verification:
        assert not self._pending, "verify twice without keep"
        rows = [anchor, *draft.tokens]
        taps = self._run(rows)
        self._pending = rows
        logits = [logits_after(self.state[: self.length + row + 1]) for row in range(len(rows))]
        return Verification(np.stack(logits), taps)

    def keep(self, rows: int) -> None:
        assert self._pending, "keep without verify"
        self.crop(self.length + rows)

    def end_prompt(self) -> None:
        assert not self._pending
        if self.state:
            self._checkpoints[self.length] = list(self.state)

    def crop(self, length: int) -> None:
        assert 0 <= length <= len(self.state)
        self._pending = []
        self._checkpoints = {at: kept for at, kept in self._checkpoints.items() if at <= length}
        back = len(self.state) - length
        if back == 0:
            return
        if back > self._undoes:
            at = max(self._checkpoints, default=0)
            self.went_back.append(length - at)
            self.state, length = list(self._checkpoints.get(at, [])), at
        self._undoes = 0
        del self.state[length:]

    def assume_length(self, length: int) -> bool:
        return False

    def save(self) -> bytes:
        assert not self._pending
        return np.array(self.state, np.int32).tobytes()

    def load(self, state: bytes, length: int) -> None:
        self.state, self._pending, self._checkpoints, self._undoes = np.frombuffer(state, np.int32).tolist(), [], {}, 0
        assert self.length == length

    def _run(self, rows: Sequence[int]) -> TargetFeatures:
        assert 1 <= len(rows) <= self.max_width
        assert len(self.state) + len(rows) <= self.context
        before = len(self.state)
        self.state += rows
        self._undoes = len(rows) - 1
        return np.array([[position, token] for position, token in enumerate(rows, before)], np.float32)
