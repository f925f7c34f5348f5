"""Constraint on the tool calls in an answer; other text is unconstrained.

Grammars admit no marker tokens, so a call is a sequence of parts: text that follows a grammar, and a marker.
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
    """Part of a tool call: text that follows a grammar (made from the call's text so far), up to a marker.

    Without a grammar the part is its marker alone, or with `is_free` any text up to the marker. Without a marker the
    part ends where its grammar admits nothing more.
    """

    grammar: Callable[[str], GrammarConstraint] | None = None
    marker: int | None = None
    is_free: bool = False


class CallWatch(Protocol):
    """Detector of the beginning of a tool call in unconstrained text."""

    def count_free(self, tokens: Sequence[int]) -> int:
        """Return the number of tokens up to and including the first that may open a call; all if there is none."""

    def push(self, token: int) -> tuple[str, Sequence[CallPart]]:
        """Read a token; return a call's text so far and its remaining parts if it opens one, else ("", ())."""


class CallConstraint:
    """`Constraint` of one answer. `required`: the parts of the call with which the answer has to begin."""

    renormalizes = False  # recorded probabilities are those without the constraint

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, watch: CallWatch, required: Sequence[CallPart] = ()
    ) -> None:
        self._tokenizer, self._size, self._watch = tokenizer, vocab_size, watch
        self._text, self._parts = "", list(required)  # the current call's text and remaining parts
        self._grammar: GrammarConstraint | None = None
        self._begin_part()

    def mask(self) -> NDArray[np.bool_] | None:
        """See `Constraint`."""
        if not self._parts or self._parts[0].is_free:
            return None
        marker = self._parts[0].marker
        if self._grammar is None:
            mask = np.zeros(self._size, np.bool_)
        else:
            mask = self._grammar.mask()
            ends = list(self._tokenizer.ends)
            is_complete = bool(mask[ends].any())  # if so, the marker may come next
            mask[ends] = False
            if not is_complete:
                return mask
        if marker is not None:
            mask[marker] = True
        return mask

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        if not self._parts:
            self._text, parts = self._watch.push(token)
            self._parts = list(parts)
            self._begin_part()
            return
        self._text += self._tokenizer.text_of(token)
        if token == self._parts[0].marker:
            self._end_part()
        elif self._grammar:
            self._grammar.advance(token)
            if self._parts[0].marker is None and self._grammar.is_complete_after([]):
                self._end_part()

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """See `Constraint`; stops at the end of the current part, since the next part's grammar does not exist yet."""
        if not self._parts or self._parts[0].is_free:
            return count_through(tokens, self._parts[0].marker) if self._parts else self._watch.count_free(tokens)
        marker = self._parts[0].marker
        if self._grammar is None:
            return 1 if tokens and tokens[0] == marker else 0
        text = list(takewhile(lambda token: token != marker and token not in self._tokenizer.ends, tokens))
        count = self._grammar.count_allowed(text)
        is_marker_next = count == len(text) and count < len(tokens) and tokens[count] == marker
        return count + 1 if is_marker_next and self._grammar.is_complete_after(text) else count

    def forced_tokens(self) -> Sequence[int]:
        """See `Constraint`."""
        if self._grammar:
            return self._grammar.forced_tokens()
        marker = self._parts[0].marker if self._parts and not self._parts[0].is_free else None
        return [] if marker is None else [marker]

    def _end_part(self) -> None:
        del self._parts[0]
        self._begin_part()

    def _begin_part(self) -> None:
        grammar = self._parts[0].grammar if self._parts else None
        self._grammar = grammar(self._text) if grammar else None


def count_through(tokens: Sequence[int], marker: int | None) -> int:
    """Count the tokens up to and including the marker; all tokens if the marker is None or absent."""
    return next((index + 1 for index, token in enumerate(tokens) if token == marker), len(tokens))
