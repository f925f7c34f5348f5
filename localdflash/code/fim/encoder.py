"""Encode text line by line and cache each line: at the next key only the line that changed is encoded again.

Lines are encoded apart, so the ids of a text do not depend on what surrounds it and a longer text only adds ids.
Pre-tokenizers cut after a line feed too, except for empty lines: those stay with the line before them.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from localdflash.text.fim import Vocabulary

REMEMBERED = 16_384  # lines
LONG_LINE = 1024  # characters; longer ones are not remembered
_LINES = re.compile(r"[^\n]*\n(?:[ \t]*\n)*|[^\n]+")


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text, each with its line feed and the empty lines after it. Together they are the text."""
    return (found.group() for found in _LINES.finditer(text))


class Encoder:
    """An encoder for one vocabulary; safe to use from several threads."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self._remembered = lru_cache(REMEMBERED)(self._encode)

    def line(self, line: str) -> tuple[int, ...]:
        """The ids of one line of `lines_of`, as they are inside a text."""
        return self._remembered(line) if len(line) <= LONG_LINE else self._encode(line)

    def text(self, text: str) -> list[int]:
        """The ids of a text."""
        return [token for line in lines_of(text) for token in self.line(line)]

    def _encode(self, line: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(line, continues=True))
