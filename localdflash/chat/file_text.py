"""Lines of a text file, and edits that keep the byte order mark and the line endings."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple, Self

from localdflash.base.errors import UsageError
from localdflash.engine.common_prefix import count_common_ends

CONTEXT_LINES = 3  # unchanged lines shown before and after a change
_BOM = b"\xef\xbb\xbf"
_Change = tuple[int, int, int, int]  # a, b, c, d: old[a:b] became new[c:d]
_MAX_COMPARED = 25_000_000  # old lines times new lines; a larger comparison would take seconds


class Splice(NamedTuple):
    """Replacement of the lines `start` to `stop` by `lines`, as in `text[start:stop] = lines`."""

    start: int
    stop: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class ShownHunk:
    """Hunk to display. `old`, `new`: number of its first line in each file, from 1. Lines start with their sign."""

    old: int
    new: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileText:
    """Text file: lines without line endings, and the ending of each: LF or CRLF, or "" for an unfinished last line."""

    lines: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    has_bom: bool = False

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Parse bytes; UsageError if they are not UTF-8."""
        if b"\0" in data:
            raise UsageError("is a binary file")
        try:
            text = data.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError("is not in UTF-8") from None
        *complete, unfinished = text.split("\n")
        lines = [line.removesuffix("\r") for line in complete]
        ends = ["\r\n" if line.endswith("\r") else "\n" for line in complete]
        if unfinished:
            lines.append(unfinished)
            ends.append("")
        return cls(tuple(lines), tuple(ends), data.startswith(_BOM))

    @property
    def lacks_final_newline(self) -> bool:
        """Return whether the last line has no line ending."""
        return bool(self.ends) and not self.ends[-1]

    def with_splices(self, splices: Iterable[Splice], final_newline: bool | None = None) -> bytes:
        """Return the file with lines replaced. `final_newline`: whether the last line has one; None: as before."""
        most_common = Counter(end for end in self.ends if end).most_common(1)
        new_end = most_common[0][0] if most_common else "\n"
        lines: list[str] = []
        ends: list[str] = []
        at = 0
        for start, stop, new in splices:
            lines += [*self.lines[at:start], *new]
            ends += [*self.ends[at:start], *[new_end] * len(new)]
            at = stop
        lines += self.lines[at:]
        ends = [end or new_end for end in (*ends, *self.ends[at:])]
        if ends and (self.lacks_final_newline if final_newline is None else not final_newline):
            ends[-1] = ""
        text = "".join(line + end for line, end in zip(lines, ends, strict=True))
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise UsageError("would get lone surrogates, which UTF-8 cannot encode") from None
        if b"\0" in data:
            raise UsageError("would get a NUL character")
        return _BOM * self.has_bom + data


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[Splice]:
    """Return the splices that turn `old` into `new`."""
    return [Splice(start, stop, new[first:last]) for start, stop, first, last in _find_changes(old, new)]


def make_hunks(before: bytes | None, after: bytes | None) -> tuple[ShownHunk, ...]:
    """Return the hunks of a change as `diff -u` shows them."""
    old, new = _split_lines(before), _split_lines(after)
    return tuple(_make_hunk(old, new, group) for group in _group_changes(_find_changes(old, new)))


def _split_lines(data: bytes | None) -> list[tuple[str, bool]]:
    """Return each line, and whether it has a line ending."""
    text = FileText.read(data or b"")
    return [(line, bool(end)) for line, end in zip(text.lines, text.ends, strict=True)]


def _find_changes(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[_Change]:
    """Return the ranges where `old[a:b]` became `new[c:d]`."""
    head, tail = count_common_ends(old, new)
    old_stop, new_stop = len(old) - tail, len(new) - tail
    if (old_stop - head) * (new_stop - head) > _MAX_COMPARED:
        return [(head, old_stop, head, new_stop)]
    matcher = SequenceMatcher(None, old[head:old_stop], new[head:new_stop])
    return [(a + head, b + head, c + head, d + head) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def _group_changes(changes: Iterable[_Change]) -> Iterator[list[_Change]]:
    """Yield groups of changes whose context lines touch or overlap."""
    group: list[_Change] = []
    for change in changes:
        if group and change[0] - group[-1][1] > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _make_hunk(old: Sequence[tuple[str, bool]], new: Sequence[tuple[str, bool]], group: Sequence[_Change]) -> ShownHunk:
    first = max(group[0][0] - CONTEXT_LINES, 0)
    lead = group[0][0] - first
    lines: list[str] = []

    def add_lines(sign: str, pairs: Sequence[tuple[str, bool]]) -> None:
        for line, has_end in pairs:
            lines.append(sign + line)
            if not has_end:
                lines.append("\\ No line end at the end of the file")

    at = first
    for start, stop, begin, end in group:
        add_lines(" ", old[at:start])
        add_lines("-", old[start:stop])
        add_lines("+", new[begin:end])
        at = stop
    add_lines(" ", old[at : at + CONTEXT_LINES])
    return ShownHunk(first + 1, group[0][2] - lead + 1, tuple(lines))
