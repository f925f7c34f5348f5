"""Encode text line by line, with a cache, so that a typed key costs only the line that changed.

The ids of a text do not depend on its surroundings, and a longer text only adds ids. Empty lines stay with the line
before them, as in pre-tokenizers.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from localdflash.text.fim_formats import Vocabulary

MAX_CACHED_LINES = 16_384
MAX_CACHED_LINE_CHARS = 1024  # longer lines are not cached
_LINES = re.compile(r"[^\n]*\n(?:[ \t]*\n)*|[^\n]+")


def lines_of(text: str) -> Iterator[str]:
    """Return the lines of a text, each with its line feed and the empty lines after it."""
    return (found.group() for found in _LINES.finditer(text))


class Encoder:
    """Caching encoder for one vocabulary. Thread-safe."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self._encode_cached = lru_cache(MAX_CACHED_LINES)(self._encode)

    def line(self, line: str) -> tuple[int, ...]:
        """Return the ids of one line of `lines_of`, as inside a text."""
        return self._encode_cached(line) if len(line) <= MAX_CACHED_LINE_CHARS else self._encode(line)

    def text(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [token for line in lines_of(text) for token in self.line(line)]

    def _encode(self, line: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(line, continues=True))
