"""An open document as LSP defines it: lines end at LF, CRLF and CR and nowhere else, columns count the client's units.

Positions are clamped as the specification says: a column beyond its line is the line's end, a line beyond the last is
the document's end. A position in the middle of a character is before it. Source: LSP 3.18, "Text Documents".
"""

import re
from typing import Literal, NamedTuple

Encoding = Literal["utf-8", "utf-16", "utf-32"]

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Place(NamedTuple):
    """Line and column, both from 0; the column in characters, not in the client's units."""

    line: int
    column: int


class Document:
    """Text, kept as its lines: an edit costs what it touches. `version` is the client's."""

    def __init__(self, uri: str, text: str, version: int, encoding: Encoding = "utf-16") -> None:
        self.uri, self.version, self.encoding = uri, version, encoding
        self._lines = _split(text)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._lines)

    @property
    def line_count(self) -> int:
        """Lines; the last one has no end, and may be empty."""
        return len(self._lines)

    def line(self, number: int) -> str:
        """A line without its end."""
        return self._lines[number].rstrip("\r\n")

    def around(self, place: Place) -> tuple[str, str]:
        """The text before and after a place."""
        line, column = self._lines[place.line], place.column
        before, after = self._lines[: place.line], self._lines[place.line + 1 :]
        return "".join(before) + line[:column], line[column:] + "".join(after)

    def place(self, line: int, units: int) -> Place:
        """A client's position."""
        if line >= len(self._lines):
            return Place(len(self._lines) - 1, len(self._lines[-1]))
        return Place(max(line, 0), _column(self.line(max(line, 0)), units if line >= 0 else 0, self.encoding))

    def units(self, place: Place) -> int:
        """The column of a place in the client's units."""
        return _length(self._lines[place.line][: place.column], self.encoding)

    def replace(self, start: Place, end: Place, text: str) -> None:
        """Put `text` where the text between two places was; places in the wrong order are taken the other way round."""
        if end < start:
            start, end = end, start
        # One line more on either side: a CR and an LF that come to stand side by side are one line end.
        first, last = max(start.line - 1, 0), min(end.line + 1, len(self._lines) - 1)
        before = "".join(self._lines[first : start.line]) + self._lines[start.line][: start.column]
        after = self._lines[end.line][end.column :] + "".join(self._lines[end.line + 1 : last + 1])
        fresh = _split(before + text + after)
        if last < len(self._lines) - 1:
            fresh.pop()  # empty: what was replaced ends with a line end, after which the old lines go on
        self._lines[first : last + 1] = fresh

    def replace_all(self, text: str) -> None:
        """Put `text` in place of everything."""
        self._lines = _split(text)


def _split(text: str) -> list[str]:
    """Lines with their ends; after the last line end comes one more line, which may be empty."""
    lines = _LINE.findall(text)
    if not lines or lines[-1][-1] in "\r\n":
        lines.append("")
    return lines


def _column(line: str, units: int, encoding: Encoding) -> int:
    """How many characters of a line lie within so many units."""
    if encoding == "utf-32" or line.isascii():
        return min(max(units, 0), len(line))
    low, high = 0, min(max(units, 0), len(line))  # a character has at least one unit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _length(line[:middle], encoding) <= units else (low, middle - 1)
    return low


def _length(text: str, encoding: Encoding) -> int:
    """Units of a text. JSON can hold half of a surrogate pair: it counts as it would if it were written."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))
