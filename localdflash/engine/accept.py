"""Lossless acceptance, one rule, greedy and sampled.

Walk from the anchor: draw y from the target's processed distribution, go on to the drafted token if it equals y, else
stop; y is the bonus. Every committed token is a draw of the target, so drafts cannot change the distribution.

A draft that was drawn itself goes another way to the same distribution: see `drawing`.
"""

from collections.abc import Sequence

from localdflash.engine.draft import Chances, Draft
from localdflash.engine.pair import Logits
from localdflash.engine.sampling import Sampler


def accept(
    draft: Draft, logits: Logits, sampler: Sampler, ids: Sequence[int], limit: int, ends: frozenset[int]
) -> list[int]:
    """Return the tokens to commit after `ids`: at most `limit`, ending at an end token.

    Row 0 of logits [rows, V] is the anchor's. The last token is the bonus, whose keys and values no row
    holds: as many rows are kept as tokens are committed.
    """
    context = list(ids[-sampler.window :]) if sampler.window else []
    committed: list[int] = []
    chances: Sequence[Chances | None] = draft.chances or [None] * len(draft)
    for proposed, drawn_from, row in zip((*draft.tokens, None), (*chances, None), logits, strict=True):
        token = sampler.draw(row, context, proposed, drawn_from)
        committed.append(token)
        if token != proposed or token in ends or len(committed) == limit:
            break
        context.append(token)
    return committed
