"""Constraint that makes several completions at one cursor distinct: each begins with a different token."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localdflash.code.fim.healing import Healing
from localdflash.engine.generate import Request


class DistinctStart:
    """`Constraint`: the first token after the word of `healing` is not in `first_tokens`, which all choices share."""

    renormalizes = False

    def __init__(self, healing: Healing | None, vocab_size: int, first_tokens: set[int]) -> None:
        self._healing, self._size, self._first_tokens = healing, vocab_size, first_tokens
        self._is_first = True  # whether the first token has not been sampled yet

    def mask(self) -> NDArray[np.bool_] | None:
        """See `Constraint`."""
        if self._healing and (word_mask := self._healing.mask()) is not None:
            return word_mask
        if not self._is_first:
            return None
        mask = np.ones(self._size, np.bool_)
        mask[list(self._first_tokens)] = False
        return mask

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        if self._healing and not self._healing.done:
            self._healing.advance(token)
        elif self._is_first:
            self._first_tokens.add(token)
            self._is_first = False

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """See `Constraint`."""
        if not self._is_first:
            return len(tokens)
        if self._healing and not self._healing.done:
            return min(self._healing.count_allowed(tokens), 1)  # this token may complete the word
        return 0 if tokens and tokens[0] in self._first_tokens else len(tokens)

    def forced_tokens(self) -> Sequence[int]:
        """See `Constraint`."""
        return ()


def continue_past_end(request: Request, ids: Sequence[int], vocab_size: int) -> Request:
    """Return a request that samples another token in place of the end token `ids[-1]`. The requests share `stats`."""
    constraint = DistinctStart(None, vocab_size, {*request.ends})
    return replace(request, ids=list(ids[:-1]), constraint=constraint, finish_reason="")
