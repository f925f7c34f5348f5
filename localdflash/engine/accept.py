"""Lossless acceptance, one rule for chain and tree, greedy and sampled.

Walk from the anchor: draw y from the target's processed distribution at the node, go to the child that equals y, else
stop; y is the bonus. Every committed token is a draw of the target, so drafts cannot change the distribution.
"""

from collections.abc import Sequence

from localdflash.engine.draft import Draft
from localdflash.engine.pair import Logits
from localdflash.engine.sampling import Sampler


def accept(
    draft: Draft, logits: Logits, sampler: Sampler, ids: Sequence[int], limit: int, ends: frozenset[int]
) -> tuple[list[int], list[int]]:
    """Return the tokens to commit after `ids`, and the rows of logits [rows, V] to keep.

    At most `limit` tokens, ending at an end token. The last one is the bonus, whose keys and values no row holds;
    rows[0] is the anchor's.
    """
    context = list(ids[-sampler.window :]) if sampler.window else []
    committed, rows, node = list[int](), [0], -1
    while True:
        token = sampler.draw(logits[node + 1], context)
        committed.append(token)
        if token in ends or len(committed) == limit:
            return committed, rows
        child = draft.child(node, token)
        if child is None:
            return committed, rows
        context.append(token)
        rows.append(child + 1)
        node = child
