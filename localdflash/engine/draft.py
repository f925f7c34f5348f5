"""A draft: the tokens that a drafter proposes to follow the anchor.

It is a tree whose usual case is a chain. Node i has a token, a parent (-1 is the anchor) that comes before it, and the
drafter's confidence that the node is right if its parent is. Position = anchor's + depth, mask = ancestors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_NODES = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens in topological order, with their parents and the drafter's confidence."""

    drafter: str
    tokens: Sequence[int]
    parents: Sequence[int]
    confidence: Sequence[float]

    @classmethod
    def chain(cls, drafter: str, tokens: Sequence[int], confidence: Sequence[float]) -> "Draft":
        """A draft without branches."""
        return cls(drafter, tokens, range(-1, len(tokens) - 1), confidence)

    @property
    def is_chain(self) -> bool:
        """Whether every node's parent is the node before it."""
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    def first(self, nodes: int) -> "Draft":
        """The first nodes alone; parents come first, so this is a draft again."""
        return Draft(self.drafter, self.tokens[:nodes], self.parents[:nodes], self.confidence[:nodes])

    def child(self, parent: int, token: int) -> int | None:
        """The child of a node (-1 for the anchor) that carries this token."""
        for node in range(parent + 1, len(self.tokens)):
            if self.parents[node] == parent and self.tokens[node] == token:
                return node
        return None

    def __len__(self) -> int:
        return len(self.tokens)


NOTHING = Draft("none", (), (), ())
