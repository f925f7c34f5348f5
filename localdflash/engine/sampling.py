"""From a row of logits to one token: penalty, temperature, top-k, top-p, min-p, draw.

The order is fixed. One uniform number is used per committed token, whether it was drafted or not: with one seed,
drafting and plain decoding give the same text at any temperature, as long as the target's logits are the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localdflash.errors import LocaldflashError, UsageError


@dataclass(frozen=True)
class SamplingParams:
    """What a request may set; checked on creation (UsageError names the field and its range)."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int = 256  # newest tokens that the penalty looks at
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 10.0)
        _check("top_k", self.top_k, 0, 2**31)
        _check("top_p", self.top_p, 1e-6, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.1, 10.0)
        _check("penalty_window", self.penalty_window, 0, 2**31)
        if self.seed is not None:
            _check("seed", self.seed, 0, 2**63)


def _check(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not math.isfinite(value) or not low <= value <= high:
        raise UsageError(f"{name} is {value}: expected a number from {low:g} to {high:g}")


class Sampler:
    """Draws tokens for one request."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.greedy = params.temperature == 0.0
        self._plain = self.greedy and params.repetition_penalty == 1.0
        self._random = np.random.default_rng(params.seed)

    def draw(self, logits: NDArray[np.float32], ids: Sequence[int]) -> int:
        """The next token after `ids` from logits [V]; LocaldflashError where the logits are not numbers."""
        if self._plain:
            token = int(logits.argmax())
            if math.isnan(logits[token]):  # argmax stops at the first NaN
                raise LocaldflashError("the model gave logits that are not numbers: the file may be damaged")
            return token
        scores = self._penalised(logits.astype(np.float64), ids)
        if self.greedy:
            return int(scores.argmax())
        tokens, probabilities = self.distribution(scores)
        edges = np.cumsum(probabilities)
        drawn = np.searchsorted(edges, self._random.random() * edges[-1], side="right")
        return int(tokens[min(int(drawn), len(tokens) - 1)])

    def _penalised(self, scores: NDArray[np.float64], ids: Sequence[int]) -> NDArray[np.float64]:
        if np.isnan(scores).any():
            raise LocaldflashError("the model gave logits that are not numbers: the file may be damaged")
        penalty, window = self.params.repetition_penalty, self.params.penalty_window
        if penalty == 1.0 or window == 0:
            return scores
        seen = np.unique(np.asarray(ids[-window:], np.int64))
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        return scores

    def distribution(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tokens in falling order of probability that survive the filters, and their normalised probabilities."""
        p = self.params
        keep = min(p.top_k or len(scores), len(scores))
        tokens = np.argsort(-scores, kind="stable")[:keep]
        scaled = (scores[tokens] - scores[tokens[0]]) / p.temperature
        weights = np.exp(scaled)
        probabilities = weights / weights.sum()
        if p.top_p < 1.0:
            inside = np.cumsum(probabilities) - probabilities < p.top_p  # the token that crosses the bound stays
            tokens, probabilities = tokens[inside], probabilities[inside]
        if p.min_p > 0.0:
            likely = probabilities >= p.min_p * probabilities[0]
            tokens, probabilities = tokens[likely], probabilities[likely]
        return tokens, probabilities / probabilities.sum()
