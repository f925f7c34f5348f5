"""Token healing: generate the unfinished word before the cursor again, so that the model chooses its tokens.

`retu` may encode to two tokens although `return` is one token. So the word is removed from the prompt, and the answer
must begin with it.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from localdflash.text.tokenizer import Tokenizer  # importing it loads llama.cpp's library

# Splits like pre-tokenizers: letters after an optional non-letter, punctuation after an optional space, or one space.
_WORD = re.compile(r"(?:[^\r\n\w]|_)?[^\W\d_]+\Z| ?[^\w\s]+\Z|(?<=\S) \Z")
MAX_WORD_CHARS = 32


def unfinished_word(line: str) -> str:
    """Return the letters, punctuation or space that end a line, without indentation; "" after a digit or "_"."""
    match = _WORD.search(line, max(len(line) - MAX_WORD_CHARS, 0))
    if not match:
        return ""
    return match.group() if line[: match.start() + 1].strip() else match.group().lstrip()


class Spellings:
    """Index of a vocabulary's tokens by their bytes; built in about 0.7 s for 150 000 tokens."""

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int) -> None:
        self.size = vocab_size
        pieces = ((tokenizer.piece(token), token) for token in range(min(tokenizer.vocab_size, vocab_size)))
        sorted_pieces = sorted((piece, token) for piece, token in pieces if piece)
        self._pieces = [piece for piece, _ in sorted_pieces]
        self._tokens = np.array([token for _, token in sorted_pieces], np.int64)
        self.piece_of = {token: piece for piece, token in sorted_pieces}

    def compatible_mask(self, remaining: bytes) -> NDArray[np.bool_]:
        """Return a mask [vocab_size] of the tokens that start with `remaining` or are a prefix of it."""
        mask = np.zeros(self.size, np.bool_)
        for length in range(1, len(remaining) + 1):
            end = remaining + b"\xff" * 64 if length == len(remaining) else remaining[:length] + b"\0"
            mask[self._tokens[bisect_left(self._pieces, remaining[:length]) : bisect_left(self._pieces, end)]] = True
        return mask


class Healing:
    """`Constraint`: the answer begins with `word`, which was removed from the prompt."""

    renormalizes = True

    def __init__(self, spellings: Spellings, word: str) -> None:
        self._spellings, self._remaining = spellings, word.encode()

    @property
    def done(self) -> bool:
        """Return whether the answer contains the complete word."""
        return not self._remaining

    def mask(self) -> NDArray[np.bool_] | None:
        """See `Constraint`."""
        return self._spellings.compatible_mask(self._remaining) if self._remaining else None

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        self._remaining = self._remaining[len(self._spellings.piece_of.get(token, b"")) :]

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """See `Constraint`."""
        remaining = self._remaining
        for count, token in enumerate(tokens):
            if not remaining:
                break
            piece = self._spellings.piece_of.get(token, b"")
            if not piece or not (piece.startswith(remaining) or remaining.startswith(piece)):
                return count
            remaining = remaining[len(piece) :]
        return len(tokens)

    def forced_tokens(self) -> Sequence[int]:
        """See `Constraint`. Always empty: the model chooses the tokens of the word."""
        return ()
