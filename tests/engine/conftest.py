"""Fakes of target and drafter with known answers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.engine.controller import Controller
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures, Verification
from tests.support.guessing import Eager


class FakeTarget:
    """Target defined by a table [V, V, V] of logits after two tokens. Asserts that every call is valid.

    A row's features are its position, its token and the previous token, so that a drafter can check its rows.
    """

    is_recurrent = False

    def __init__(self, table: NDArray[np.float32], context: int = 96, max_width: int = 33) -> None:
        self.table, self.context, self.max_width = table, context, max_width
        self.vocab_size = len(table)
        self.cached: list[int] = []
        self.extended: list[int] = []  # chunk sizes of prefills
        self._fresh: list[int] = []  # tokens of verified rows, until `keep`

    @property
    def length(self) -> int:
        return len(self.cached)

    def extend(self, ids: Sequence[int]) -> TargetFeatures:
        assert not self._fresh, "extend between verify and keep"
        assert 1 <= len(ids) <= self.max_width
        assert self.length + len(ids) <= self.context
        self.extended.append(len(ids))
        taps = self._taps(ids)
        self.cached += ids
        return taps

    def verify(self, anchor: int, draft: Draft) -> Verification:
        assert not self._fresh, "verify twice without keep"
        rows = [anchor, *draft.tokens]
        assert len(rows) <= self.max_width
        assert self.length + len(rows) <= self.context
        self._fresh = rows
        logits = np.stack([self.table[before, token] for before, token in zip(self._before(rows), rows, strict=True)])
        return Verification(logits, self._taps(rows))

    def keep(self, rows: int) -> None:
        assert self._fresh, "keep without verify"
        assert 0 <= rows <= len(self._fresh)
        self.cached += self._fresh[:rows]
        self._fresh = []

    def end_prompt(self) -> None:
        assert not self._fresh

    def crop(self, length: int) -> None:
        assert 0 <= length <= self.length
        self._fresh = []
        del self.cached[length:]

    def assume_length(self, length: int) -> bool:
        return False

    def save(self) -> bytes:
        assert not self._fresh
        return np.array(self.cached, np.int32).tobytes()

    def load(self, state: bytes, length: int) -> None:
        self._fresh, self.cached = [], np.frombuffer(state, np.int32).tolist()
        assert len(self.cached) == length

    def _before(self, rows: Sequence[int]) -> list[int]:
        """Return the previous token of each row."""
        return [self.cached[-1] if self.cached else 0, *rows[:-1]]

    def _taps(self, rows: Sequence[int]) -> TargetFeatures:
        positions = range(self.length, self.length + len(rows))
        return np.array(list(zip(positions, rows, self._before(rows), strict=True)), np.float32)


class FakeDrafter:
    """Drafter that proposes the result of a function (sequence with the anchor, limit) -> (tokens, confidence).

    Asserts that every observed token has its position, and the features of its own row.
    """

    def __init__(self, name: str, invent: Callable[[list[int], int], Any], is_model: bool = True) -> None:
        self.name, self.is_model, self._invent = name, is_model, invent
        self.max_draft_tokens = 63
        self.observed: list[int] = []
        self.propose_calls = 0

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        assert taps is not None
        assert len(taps) == len(ids)
        for token, (position, own, before) in zip(ids, taps.tolist(), strict=True):
            assert (position, own, before) == (len(self.observed), token, self.observed[-1] if self.observed else 0)
            self.observed.append(token)

    def propose(self, anchor: int, limit: int) -> Draft:
        assert limit >= 1
        self.propose_calls += 1
        tokens, confidence = self._invent([*self.observed, anchor], limit)
        return Draft(self.name, tokens, confidence) if tokens else EMPTY_DRAFT

    def rollback(self, length: int) -> None:
        assert 0 <= length <= len(self.observed)
        del self.observed[length:]

    def save(self) -> bytes:
        return np.array(self.observed, np.int32).tobytes()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        self.observed = np.frombuffer(state, np.int32).tolist()
        assert self.observed == list(ids)


@pytest.fixture(scope="session")
def fake_target() -> Callable[..., Any]:
    """Return a function (table, context, max_width) -> FakeTarget."""
    return FakeTarget


@pytest.fixture(scope="session")
def fake_drafter() -> Callable[..., Any]:
    """Return a function (name, invent, is_model) -> FakeDrafter."""
    return FakeDrafter


@pytest.fixture(scope="session")
def eager() -> Callable[..., Controller]:
    """Return a function (names of drafters) -> controller that verifies all their drafts."""
    return lambda *names: Eager({1: 1.0, 2: 1.0}, dict.fromkeys(names, 0.0))
