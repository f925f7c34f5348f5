"""Encode text line by line, with a cache, and truncate it to a number of tokens, in whole lines.

Lines are encoded separately, so a keystroke costs only the line that changed. A truncated prefix starts at a line whose
number is a multiple of a step: the start moves rarely, and the KV cache stays valid.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from localdflash.text.fim_formats import Vocabulary

MAX_CHARS_PER_TOKEN = 10  # assumed: code has fewer
STEP_SHARE, TOKENS_PER_LINE = 4, 12  # a prefix's step is about 1/4 of its lines, at 12 tokens per line
LINE_STEP_CHARS = 256  # step within a line that is too long by itself
MAX_CACHED_LINES = 16_384
MAX_CACHED_LINE_CHARS = 1024  # longer lines are not cached
_LINES = re.compile(r"[^\n]*\n(?:[ \t]*\n)*|[^\n]+")


def split_lines(text: str) -> Iterator[str]:
    """Return the lines of a text, each with its line feed and the empty lines after it."""
    return (found.group() for found in _LINES.finditer(text))


class Encoder:
    """Caching encoder for one vocabulary. Thread-safe."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self._encode_cached = lru_cache(MAX_CACHED_LINES)(self._encode)

    def line(self, line: str) -> tuple[int, ...]:
        """Return the ids of one line of `split_lines`, encoded as a continuation of other text."""
        return self._encode_cached(line) if len(line) <= MAX_CACHED_LINE_CHARS else self._encode(line)

    def text(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [token for line in split_lines(text) for token in self.line(line)]

    def _encode(self, line: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(line, continues=True))


@dataclass(frozen=True)
class Cut:
    """Piece of a text that fits into a token budget: its start and end in characters, and its ids."""

    start: int
    end: int
    ids: tuple[int, ...]


def keep_first(encoder: Encoder, text: str, room: int) -> Cut:
    """Return the first whole lines of a text within `room` tokens; if the first line is too long, its beginning."""
    ids: list[int] = []
    end = 0
    for line in split_lines(text[: room * MAX_CHARS_PER_TOKEN]):
        more = encoder.line(line)
        if len(ids) + len(more) > room:
            break
        ids += more
        end += len(line)
    if end or not text or room < 1:
        return Cut(0, end, tuple(ids))
    piece = text[: room * MAX_CHARS_PER_TOKEN].partition("\n")[0]
    while len(more := encoder.line(piece)) > room:
        piece = piece[: len(piece) // 2]
    return Cut(0, len(piece), tuple(more))


def keep_last(encoder: Encoder, text: str, room: int, first_line: int = 0) -> Cut:
    """Return the last lines within `room` tokens; if the last line is too long, its end. `first_line`: 0-based."""
    away = max(len(text) - room * MAX_CHARS_PER_TOKEN, 0)
    if away:
        away = text.find("\n", away) + 1 or len(text)
    lines = list(split_lines(text[away:]))
    first, tokens = len(lines), 0
    while first and (tokens := tokens + len(encoder.line(lines[first - 1]))) <= room:
        first -= 1
    if first == len(lines) and text:
        return _end_of_line(encoder, text, room)
    if first or away:
        first = _on_grid(lines, first, first_line + text.count("\n", 0, away), room)
    kept = lines[first:]
    ids = tuple(token for line in kept for token in encoder.line(line))
    return Cut(len(text) - sum(map(len, kept)), len(text), ids)


def _on_grid(lines: list[str], first: int, number: int, room: int) -> int:
    """Return the first index >= `first` at a multiple of the step, halved if needed. `number`: that of `lines[0]`."""
    numbers = [number, *(number := number + line.count("\n") for line in lines)]
    step = 1 << max(room // (STEP_SHARE * TOKENS_PER_LINE), 1).bit_length() - 1
    while step > 1:
        for index in range(first, len(lines)):
            if numbers[index] % step == 0 or (index and numbers[index - 1] // step < numbers[index] // step):
                return index
        step //= 2
    return first


def _end_of_line(encoder: Encoder, text: str, room: int) -> Cut:
    """Return the end of a too long last line, starting at a multiple of `LINE_STEP_CHARS` if possible."""
    if room < 1:
        return Cut(len(text), len(text), ())
    begin = text.rfind("\n", 0, len(text) - 1) + 1
    for density in (3, 2, 1):  # assumed characters per token
        start = max(begin, begin + -(-(len(text) - begin - room * density) // LINE_STEP_CHARS) * LINE_STEP_CHARS)
        if start < len(text) and len(ids := encoder.line(text[start:])) <= room:
            return Cut(start, len(text), ids)
    start = max(begin, len(text) - room)
    while len(ids := encoder.line(text[start:])) > room:
        start += (len(text) - start + 1) // 2
    return Cut(start, len(text), ids)
