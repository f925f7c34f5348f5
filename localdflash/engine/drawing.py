"""Drafts that are drawn from a drafter's own distribution q, and how the target takes or corrects them.

A drawn token x is taken with probability min(1, p(x) / q(x)), where p is the target's processed distribution. Otherwise
the token is drawn from what p has above q. Either way it is one of p's, whatever q is (Leviathan et al., arXiv
2211.17192), as long as

* q is what x was drawn from, given the tokens before it;
* the random numbers of drawing, taking and correcting are independent: a request has one stream for its drafts, and
  another for its tokens;
* what was drawn for a node has no say in whether that node is verified, only in how it goes on (`nodes_to_verify`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.controller import Controller
from localdflash.engine.draft import Chances, Draft

Probabilities = NDArray[np.float64]


def draw_from(probabilities: Probabilities, random: np.random.Generator) -> int:
    """An index of probabilities [n], which need not sum to 1; one uniform number is used."""
    edges = np.cumsum(probabilities)
    drawn = np.searchsorted(edges, random.random() * edges[-1], side="right")
    return min(int(drawn), len(probabilities) - 1)


def take_or_correct(token: int, drawn_from: Chances, wanted: Chances, random: np.random.Generator) -> int:
    """The drafted token, if it is taken; else one of what the target's distribution has above the drafter's."""
    if random.random() * drawn_from.of(token) < wanted.of(token):
        return token
    left = above(wanted, drawn_from)
    if not left.any():  # the two are the same, but for rounding
        return token
    return int(wanted.tokens[draw_from(left, random)])


def above(wanted: Chances, drawn_from: Chances) -> Probabilities:
    """How much more probable the target has each of its tokens than the drafter, 0 where less."""
    size = 1 + max(int(wanted.tokens.max()), int(drawn_from.tokens.max()))
    drafted = np.zeros(size)
    drafted[drawn_from.tokens] = drawn_from.probabilities
    left: Probabilities = np.maximum(wanted.probabilities - drafted[wanted.tokens], 0.0)
    return left


def nodes_to_verify(controller: Controller, draft: Draft, rate: float) -> int:
    """How many nodes of a drawn draft are worth their rows, or 0 if all promise no more than `rate`.

    Whether a node is among them is decided by its confidence and those before it, as if the later ones were like it:
    later ones depend on what was drawn for it.
    """
    count = len(draft)
    for node in range(count):
        known = list(draft.confidence[: node + 1])
        nodes, promised = controller.best_prefix(replace(draft, confidence=known + known[-1:] * (count - node - 1)))
        if nodes <= node or (node == 0 and promised <= rate):
            return node
    return count
