"""Keeps the calls of tools in an answer to a form, and lets all else of it be.

Calls have marker tokens in them, which no grammar of text can say. So a call is a row of parts: text by a grammar, and
the marker behind it. What a grammar forces is drafted, as in any answer with one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localdflash.text.grammar import GrammarConstraint
from localdflash.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CallPart:
    """A part of a call. Without a grammar it is its marker alone, or with `free` anything up to that; without a marker
    it ends where its grammar can go on no further.

    `grammar` makes the constraint from the call's text so far, its markers spelled out.
    """

    grammar: Callable[[str], GrammarConstraint] | None = None
    marker: int | None = None
    free: bool = False


class CallWatch(Protocol):
    """Finds where a call begins in what the model writes freely."""

    def before(self, tokens: Sequence[int]) -> int:
        """How many of the next tokens it takes until a call may begin; all of them if none does."""

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """The text of a call up to and with this token, and its parts from there; ("", ()) if none begins here."""


class CallConstraint:
    """The state of one answer, see `Constraint`. `must` are the parts of a call that it begins with, if any."""

    renormalizes = False

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, watch: CallWatch, must: Sequence[CallPart] = ()) -> None:
        self._tokenizer, self._size, self._watch = tokenizer, vocab_size, watch
        self._text, self._parts = "", list(must)  # of the call under way: its text, and the parts to come
        self._inside: GrammarConstraint | None = None
        self._enter()

    def mask(self) -> NDArray[np.bool_] | None:
        """See `Constraint`."""
        if not self._parts or self._parts[0].free:
            return None
        marker = self._parts[0].marker
        if self._inside is None:
            mask = np.zeros(self._size, np.bool_)
        else:
            mask = self._inside.mask()
            ends = list(self._tokenizer.ends)
            complete = bool(mask[ends].any())  # where the text may end, its marker may come
            mask[ends] = False
            if not complete:
                return mask
        if marker is not None:
            mask[marker] = True
        return mask

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        if not self._parts:
            self._text, parts = self._watch.push(token)
            self._parts = list(parts)
            self._enter()
            return
        self._text += self._tokenizer.piece(token, special=True).decode("utf-8", "replace")
        if token == self._parts[0].marker:
            self._leave()
        elif self._inside:
            self._inside.advance(token)
            if self._parts[0].marker is None and self._inside.complete_after([]):
                self._leave()

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """See `Constraint`; no further than to the end of this part, for the next one is not made yet."""
        if not self._parts or self._parts[0].free:
            return up_to(tokens, self._parts[0].marker) if self._parts else self._watch.before(tokens)
        marker = self._parts[0].marker
        if self._inside is None:
            return int(bool(tokens) and tokens[0] == marker)
        text = list(takewhile(lambda token: token != marker and token not in self._tokenizer.ends, tokens))
        count = self._inside.count_allowed(text)
        closes = count == len(text) < len(tokens) and tokens[count] == marker
        return count + (closes and self._inside.complete_after(text))

    def forced_tokens(self) -> Sequence[int]:
        """See `Constraint`."""
        if self._inside:
            return self._inside.forced_tokens()
        marker = self._parts[0].marker if self._parts and not self._parts[0].free else None
        return [] if marker is None else [marker]

    def _leave(self) -> None:
        del self._parts[0]
        self._enter()

    def _enter(self) -> None:
        grammar = self._parts[0].grammar if self._parts else None
        self._inside = grammar(self._text) if grammar else None


def up_to(tokens: Sequence[int], marker: int | None) -> int:
    """How many tokens there are up to and with the marker, or at all."""
    return next((place + 1 for place, token in enumerate(tokens) if token == marker), len(tokens))
