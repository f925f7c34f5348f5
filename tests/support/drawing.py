"""A way to draw that is the same everywhere: no number is random, and what a token was drawn from can be compared."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.draft import Chances
from localdflash.engine.pair import Draw


def nth(n: int) -> Draw:
    """Draws the token that is the n-th likeliest, from 0, by the softmax of all logits."""

    def draw(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> tuple[int, Chances]:
        weights = np.exp(logits.astype(np.float64) - logits.max())
        return int(np.argsort(-logits, kind="stable")[n]), Chances(tokens, weights / weights.sum())

    return draw


def taking(drawn: Sequence[int]) -> Draw:
    """Draws these tokens, one after the other; one that may not be drawn is an error."""
    coming, softly = iter(drawn), nth(0)

    def draw(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> tuple[int, Chances]:
        return tokens.tolist().index(next(coming)), softly(logits, tokens)[1]

    return draw
