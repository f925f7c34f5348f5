"""Encode text line by line, with a cache, and truncate it at line ends to a number of tokens.

Lines are encoded separately, so a keystroke costs only the line that changed. A truncated prefix starts at a line whose
number is a multiple of a step. So its start moves rarely, and the KV cache stays valid.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from localdflash.text.fim_formats import Vocabulary

MAX_CHARS_PER_TOKEN = 10  # assumed upper limit
STEP_SHARE, TOKENS_PER_LINE = 4, 12  # the step is about 1/4 of the prefix's lines, if a line has 12 tokens
LINE_STEP_CHARS = 256  # step within a line that exceeds the budget by itself
MAX_CACHED_LINES = 16_384
MAX_CACHED_LINE_CHARS = 1024  # longer lines are not cached
_LINES = re.compile(r"[^\n]*\n(?:[ \t]*\n)*|[^\n]+")


def split_lines(text: str) -> Iterator[str]:
    """Return the lines of a text, each with its line feed and the empty lines after it."""
    return (match.group() for match in _LINES.finditer(text))


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
class TextPiece:
    """Piece of a text that fits into a token budget: its start and end in characters, and its ids."""

    start: int
    end: int
    ids: tuple[int, ...]


def keep_first(encoder: Encoder, text: str, max_tokens: int) -> TextPiece:
    """Return the first whole lines of a text within `max_tokens`; if the first line is too long, its beginning."""
    ids: list[int] = []
    end = 0
    for line in split_lines(text[: max_tokens * MAX_CHARS_PER_TOKEN]):
        line_ids = encoder.line(line)
        if len(ids) + len(line_ids) > max_tokens:
            break
        ids += line_ids
        end += len(line)
    if end or not text or max_tokens < 1:
        return TextPiece(0, end, tuple(ids))
    piece = text[: max_tokens * MAX_CHARS_PER_TOKEN].partition("\n")[0]
    while len(line_ids := encoder.line(piece)) > max_tokens:
        piece = piece[: len(piece) // 2]
    return TextPiece(0, len(piece), tuple(line_ids))


def keep_last(encoder: Encoder, text: str, max_tokens: int, first_line: int = 0) -> TextPiece:
    """Return the last lines within `max_tokens`; if the last is too long, its end. `first_line`: number, 0-based."""
    skipped_chars = max(len(text) - max_tokens * MAX_CHARS_PER_TOKEN, 0)
    if skipped_chars:
        skipped_chars = text.find("\n", skipped_chars) + 1 or len(text)
    lines = list(split_lines(text[skipped_chars:]))
    first, tokens = len(lines), 0
    while first and (tokens := tokens + len(encoder.line(lines[first - 1]))) <= max_tokens:
        first -= 1
    if first == len(lines) and text:
        return _end_of_line(encoder, text, max_tokens)
    if first or skipped_chars:
        first = _on_grid(lines, first, first_line + text.count("\n", 0, skipped_chars), max_tokens)
    last_lines = lines[first:]
    ids = tuple(token for line in last_lines for token in encoder.line(line))
    return TextPiece(len(text) - sum(map(len, last_lines)), len(text), ids)


def _on_grid(lines: list[str], first: int, number: int, max_tokens: int) -> int:
    """Return the first index >= `first` of a line whose number is a multiple of a step, halved until one is found."""
    numbers = [number, *(number := number + line.count("\n") for line in lines)]
    step = 1 << max(max_tokens // (STEP_SHARE * TOKENS_PER_LINE), 1).bit_length() - 1
    while step > 1:
        for index in range(first, len(lines)):
            if numbers[index] % step == 0 or (index and numbers[index - 1] // step < numbers[index] // step):
                return index
        step //= 2
    return first


def _end_of_line(encoder: Encoder, text: str, max_tokens: int) -> TextPiece:
    """Return the end of a too long last line, starting at a multiple of `LINE_STEP_CHARS` if possible."""
    if max_tokens < 1:
        return TextPiece(len(text), len(text), ())
    begin = text.rfind("\n", 0, len(text) - 1) + 1
    for density in (3, 2, 1):  # assumed characters per token
        start = max(begin, begin + -(-(len(text) - begin - max_tokens * density) // LINE_STEP_CHARS) * LINE_STEP_CHARS)
        if start < len(text) and len(ids := encoder.line(text[start:])) <= max_tokens:
            return TextPiece(start, len(text), ids)
    start = max(begin, len(text) - max_tokens)
    while len(ids := encoder.line(text[start:])) > max_tokens:
        start += (len(text) - start + 1) // 2
    return TextPiece(start, len(text), ids)
