"""Open document as LSP 3.18 defines it: only LF, CRLF and CR end a line; columns count the client's code units."""

import re
from bisect import bisect_right
from typing import Literal, NamedTuple

from lsprotocol import types

from localdflash.code.next_edit.trail import LineEdit
from localdflash.engine.common_prefix import count_common_ends

Encoding = Literal["utf-8", "utf-16", "utf-32"]

_ESCAPED = re.compile("[\udc80-\udcff]")  # an invalid UTF-8 byte, which `framing` decodes with surrogateescape
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class LineColumn(NamedTuple):
    """Line and column, both from 0; the column counts characters, not the client's code units."""

    line: int
    column: int


class Document:
    """Text as a list of lines, so that an edit is cheap. `version` and `language` are as the client sent them."""

    def __init__(self, uri: str, text: str, version: int, encoding: Encoding = "utf-16", language: str = "") -> None:
        self.uri, self.version, self.encoding, self.language = uri, version, encoding, language
        self._lines = _split(text)
        self._text: str | None = None  # joined on demand
        self.size = len(text)  # characters

    @property
    def text(self) -> str:
        """Return the whole text."""
        if self._text is None:
            self._text = "".join(self._lines)
        return self._text

    def line_ending(self, number: int) -> str:
        """Return the line ending to insert in a line: CRLF if the line before (or line 0) has it, else LF."""
        return "\r\n" if self._lines[max(number, 1) - 1].endswith("\r\n") else "\n"

    def line(self, number: int) -> str:
        """Return a line without its line ending."""
        return _without_ending(self._lines[number])

    def around(self, position: LineColumn) -> tuple[str, str]:
        """Return the text before and after a position."""
        offset = sum(map(len, self._lines[: position.line])) + position.column
        return self.text[:offset], self.text[offset:]

    def longest_line(self) -> int:
        """Return the length of the longest line in characters."""
        return max(map(len, self._lines))

    def range(self, start: LineColumn, end: LineColumn) -> types.Range:
        """Return the range between two positions, in the client's code units."""
        first, last = (types.Position(place.line, self.client_column(place)) for place in (start, end))
        return types.Range(first, last)

    def position(self, line: int, units: int) -> LineColumn:
        """Return the position at a line and a column in the client's code units, clamped to the document."""
        if line >= len(self._lines):
            return LineColumn(len(self._lines) - 1, len(self._lines[-1]))
        return LineColumn(max(line, 0), _column(self.line(max(line, 0)), units if line >= 0 else 0, self.encoding))

    def client_column(self, position: LineColumn) -> int:
        """Return the column of a position in the client's code units."""
        return _length(self._lines[position.line][: position.column], self.encoding)

    def replace(self, start: LineColumn, end: LineColumn, text: str) -> LineEdit:
        """Replace the text between two positions, in any order; return the changed lines."""
        if end < start:
            start, end = end, start
        # Include one more line on either side: a CR and an LF that become adjacent form one line ending.
        first, last = max(start.line - 1, 0), min(end.line + 1, len(self._lines) - 1)
        before = "".join(self._lines[first : start.line]) + self._lines[start.line][: start.column]
        after = self._lines[end.line][end.column :] + "".join(self._lines[end.line + 1 : last + 1])
        new = _split(before + text + after)
        if last < len(self._lines) - 1:
            new.pop()  # the empty last line, in place of which the next old line follows
        old, self._lines[first : last + 1] = self._lines[first : last + 1], new
        self._text = None
        self.size += sum(map(len, new)) - sum(map(len, old))
        return _edit(first, old, new)

    def replace_all(self, text: str) -> LineEdit:
        """Replace the whole text; return the changed lines."""
        old, self._lines, self._text = self._lines, _split(text), None
        self.size = len(text)
        return _edit(0, old, self._lines)


def line_feeds(text: str) -> str:
    """Return the text with LF line endings, the only ones that models know."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _edit(first: int, old: list[str], new: list[str]) -> LineEdit:
    """Return the difference between the old and the new lines from `first` on."""
    head, tail = count_common_ends(old, new)
    removed, added = old[head : len(old) - tail], new[head : len(new) - tail]
    return first + head, [_without_ending(line) for line in removed], [_without_ending(line) for line in added]


def _without_ending(line: str) -> str:
    return line.rstrip("\r\n")


def _split(text: str) -> list[str]:
    """Return the lines with their line endings; a text that ends with one has an empty last line."""
    lines = _LINE.findall(text)
    if not lines or lines[-1][-1] in "\r\n":
        lines.append("")
    return lines


def _column(line: str, units: int, encoding: Encoding) -> int:
    """Return the number of characters in the first `units` code units of a line."""
    line = line[: max(units, 0)]  # a character has at least one unit
    if line.isascii():
        return len(line)
    return bisect_right(range(1, len(line) + 1), units, key=lambda count: _length(line[:count], encoding))


def _length(text: str, encoding: Encoding) -> int:
    """Return the length of a text in code units. JSON may hold lone surrogates, each of which is one character."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass")) - 2 * len(_ESCAPED.findall(text))  # escaped bytes take 3
