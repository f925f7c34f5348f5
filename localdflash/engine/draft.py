"""A draft: the tokens that a drafter proposes to follow the anchor, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

MAX_NODES = 64


@dataclass(frozen=True, slots=True)
class Chances:
    """What a token was drawn from: different tokens [n], and their probabilities [n], which sum to 1."""

    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def of(self, token: int) -> float:
        """The probability of a token."""
        return float(self.probabilities[self.tokens == token].sum())


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, each with the drafter's confidence that it is right if those before it are.

    Where they were drawn, there is what each was drawn from, given those before it; and a confidence is that of the
    whole of it, not of the token that came out.
    """

    drafter: str
    tokens: Sequence[int]
    confidence: Sequence[float]
    chances: Sequence[Chances] = ()

    def first(self, nodes: int) -> "Draft":
        """The first nodes alone."""
        return replace(
            self, tokens=self.tokens[:nodes], confidence=self.confidence[:nodes], chances=self.chances[:nodes]
        )

    def __len__(self) -> int:
        return len(self.tokens)


NOTHING = Draft("none", (), ())
