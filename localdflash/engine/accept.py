"""Lossless acceptance: sample from the target along the draft, and stop after the first different token."""

from collections.abc import Callable, Sequence

from localdflash.engine.draft import Draft
from localdflash.engine.pair import Logits
from localdflash.engine.sampling import Sampler


def accept(
    draft: Draft, logits: Logits, sampler: Sampler, ids: Sequence[int], limit: int, ends: frozenset[int]
) -> list[int]:
    """Return the tokens to commit after `ids`: at most `limit` (≥ 1), none after an end token.

    Row 0 of logits [rows, V] is the anchor's (the last of `ids`), row i + 1 is draft token i's. The caller must keep
    as many rows in the KV cache as tokens are returned: the rows of the anchor and of all returned tokens but the last.
    """
    context = list(ids[-sampler.window :]) if sampler.window else []

    def sample(row: int, committed: list[int]) -> int:
        return sampler.sample(logits[row], [*context, *committed] if context else context)

    return _walk_draft(draft, sample, limit, ends)


def accept_greedy(draft: Draft, likeliest: Sequence[int], limit: int, ends: frozenset[int]) -> list[int]:
    """Return the tokens that `accept` would commit with a greedy sampler, from the likeliest token of each row."""
    return _walk_draft(draft, lambda row, _: likeliest[row], limit, ends)


def _walk_draft(draft: Draft, sample: Callable[[int, list[int]], int], limit: int, ends: frozenset[int]) -> list[int]:
    committed: list[int] = []
    for row, proposed in enumerate((*draft.tokens, None)):
        token = sample(row, committed)
        committed.append(token)
        if token != proposed or token in ends or len(committed) == limit:
            break
    return committed
