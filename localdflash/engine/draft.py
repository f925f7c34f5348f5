"""A draft: the tokens that a drafter proposes to follow the anchor, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens, each with the drafter's confidence that it is accepted if those before it are."""

    drafter: str
    tokens: Sequence[int]
    confidence: Sequence[float]

    def first(self, nodes: int) -> "Draft":
        """Return the draft cut to its first `nodes` tokens."""
        return replace(self, tokens=self.tokens[:nodes], confidence=self.confidence[:nodes])

    def __len__(self) -> int:
        return len(self.tokens)


EMPTY_DRAFT = Draft("none", (), ())
