"""A draft: the tokens that a drafter proposes to follow the anchor (the newest committed token)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens, and the drafter's confidence that each token is accepted if all tokens before it are."""

    drafter: str
    tokens: Sequence[int]
    confidence: Sequence[float]

    def first(self, count: int) -> "Draft":
        """Return a draft of the first `count` tokens."""
        return replace(self, tokens=self.tokens[:count], confidence=self.confidence[:count])

    def __len__(self) -> int:
        return len(self.tokens)


EMPTY_DRAFT = Draft("none", (), ())
