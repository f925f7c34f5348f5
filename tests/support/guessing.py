"""Drafter with a chosen accuracy, and a controller that verifies whole drafts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.controller import Controller
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures


class Eager(Controller):
    """Controller that verifies complete drafts at any cost: the hardest case for losslessness."""

    def choose_prefix(self, draft: Draft) -> tuple[int, float]:
        return len(draft), 1e9 + len(draft)

    def predict_rate(self, drafter: str, limit: int) -> float:
        return 1e12


class Guessing:
    """Drafter of the tokens in `coming`; some drafts are wrong from a token on or short. Records its input."""

    name, is_model = "guess", True

    def __init__(self, vocabulary: int, max_draft: int, seed: int = 0) -> None:
        self.max_draft_tokens, self._vocabulary, self._random = max_draft, vocabulary, np.random.default_rng(seed)
        self.coming: list[int] = []  # the expected continuation
        self.ids: list[int] = []
        self.taps: list[NDArray[np.float32]] = []

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        taps = np.zeros((len(ids), 1), np.float32) if taps is None else taps  # of a target that exports none
        assert len(taps) == len(ids)
        self.ids += ids
        self.taps += list(taps.copy())

    def propose(self, anchor: int, limit: int) -> Draft:
        begin = len(self.ids) + 1
        nodes = self.coming[begin : begin + int(self._random.integers(0, limit + 1))]
        if not nodes:
            return EMPTY_DRAFT
        wrong = int(self._random.integers(0, 2 * len(nodes)))
        drafted = [token if i < wrong else (token + 1) % self._vocabulary for i, token in enumerate(nodes)]
        return Draft(self.name, drafted, [0.9] * len(nodes))

    def rollback(self, length: int) -> None:
        assert 0 <= length <= len(self.ids)
        del self.ids[length:], self.taps[length:]

    def save(self) -> bytes:
        return np.array(self.taps, np.float32).tobytes()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.taps = list(np.frombuffer(state, np.float32).reshape(len(ids), -1)) if ids else []
