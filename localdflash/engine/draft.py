"""A draft: the tokens that a drafter proposes to follow the anchor, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_NODES = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, each with the drafter's confidence that it is right if those before it are."""

    drafter: str
    tokens: Sequence[int]
    confidence: Sequence[float]

    def first(self, nodes: int) -> "Draft":
        """The first nodes alone."""
        return Draft(self.drafter, self.tokens[:nodes], self.confidence[:nodes])

    def __len__(self) -> int:
        return len(self.tokens)


NOTHING = Draft("none", (), ())
