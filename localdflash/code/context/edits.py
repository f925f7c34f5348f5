"""Recent changes of open documents, grouped into few edits: a run of typing is one.

A change next to the newest edit of its file (`NEAR` lines) and soon after it (`SOON` seconds), or on the very lines
that it changed, is added to it, until it reaches `LARGEST`. An edit is a list of hunks; those that touch become one.
Applied one after the other, the edits of a file lead from what it was to what it is, unless a single change was too
large.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from localdflash.code.context.context import ContextPiece
from localdflash.code.context.denied import is_secret
from localdflash.code.context.files import clean

NEAR = 8  # lines
SOON = 1.0  # seconds
KEPT = 32  # edits
LARGEST = 3_000  # characters of an edit, old and new together


@dataclass(frozen=True, slots=True)
class EditHunk:
    """Lines that were replaced: `line` counts from 0 in the document before the edit."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def delta(self) -> int:
        """The number of lines that the hunk added."""
        return len(self.new) - len(self.old)


@dataclass(slots=True)
class RecentEdit:
    """Hunks of one document, sorted, not touching each other."""

    name: str
    hunks: list[EditHunk] = field(default_factory=list)
    last: float = 0.0

    def placed(self) -> Iterator[tuple[int, EditHunk]]:
        """Hunks with their lines in the document after the edit."""
        shift = 0
        for hunk in self.hunks:
            yield hunk.line + shift, hunk
            shift += hunk.delta

    def distance(self, first: int, last: int) -> int:
        """Lines between the edit and the lines `first` to `last`, both in the document after the edit."""
        return min((max(at - last, first - at - len(hunk.new), 0) for at, hunk in self.placed()), default=NEAR + 1)

    def size(self) -> int:
        """The number of characters."""
        return sum(len(line) + 1 for hunk in self.hunks for line in (*hunk.old, *hunk.new))


class EditHistory:
    """The newest edits of all documents. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._edits: list[RecentEdit] = []

    def changed(self, name: str, line: int, old: Sequence[str], new: Sequence[str], now: float) -> None:
        """Note that lines from `line` (from 0) on were replaced. Lines without their ends; `now` in seconds."""
        if is_secret(PurePath(name)):
            return
        line, old, new = _trimmed(line, tuple(old), tuple(new))
        if old == new:
            return
        with self._lock:
            self._add(name, EditHunk(line, old, new), now)
            del self._edits[:-KEPT]

    def _add(self, name: str, change: EditHunk, now: float) -> None:
        edit = next((one for one in reversed(self._edits) if one.name == name), None)
        if edit and _goes_on(edit, change.line, change.line + len(change.old), now):
            merged = RecentEdit(name, _merged(edit, change), now)
            if merged.size() <= LARGEST:
                self._edits.remove(edit)
                self._edits += [merged] if merged.hunks else []
                return
        fresh = RecentEdit(name, [change], now)
        # Of what is too large nothing is kept but that it was: lines of older edits no longer fit.
        self._edits.append(fresh if fresh.size() <= LARGEST else RecentEdit(name, [], now))

    def edits(self) -> list[RecentEdit]:
        """All edits, newest last."""
        with self._lock:
            return [RecentEdit(edit.name, list(edit.hunks), edit.last) for edit in self._edits if edit.hunks]

    def diffs(self, limit: int, typing: tuple[str, int] | None = None) -> list[ContextPiece]:
        """The newest edits, at most `limit`, newest last, as hunks of a unified diff without context.

        `typing`: a document and the line of its cursor. The edit under way there is left out: it changes with every
        key, and its text is around the cursor anyhow.
        """
        known = self.edits()
        if typing and known and known[-1].name == typing[0] and known[-1].distance(typing[1], typing[1] + 1) <= NEAR:
            known.pop()
        newest = known[max(len(known) - limit, 0) :]
        return [
            ContextPiece("edit", clean(edit.name), _diff(edit), 1 / (len(newest) - at))
            for at, edit in enumerate(newest)
        ]

    def replaced(self, limit: int) -> list[str]:
        """Texts that were replaced or deleted, newest first, at most `limit`: drafts may be copied from them."""
        texts = ("\n".join(hunk.old) for edit in reversed(self.edits()) for hunk in reversed(edit.hunks))
        return list(dict.fromkeys(text for text in texts if text.strip()))[:limit]

    def forget(self, name: str) -> None:
        """Drop a document that was closed, or may no longer be used."""
        with self._lock:
            self._edits = [edit for edit in self._edits if edit.name != name]


def _goes_on(edit: RecentEdit, first: int, last: int, now: float) -> bool:
    distance = edit.distance(first, last)
    return any(at < last and first < at + len(hunk.new) for at, hunk in edit.placed()) or (
        distance <= NEAR and now - edit.last <= SOON
    )


def _trimmed(line: int, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """The lines without those at either end that stay the same."""
    shorter = min(len(old), len(new))
    before = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - before
    after = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    return line + before, old[before : len(old) - after], new[before : len(new) - after]


def _merged(edit: RecentEdit, change: EditHunk) -> list[EditHunk]:
    """The hunks of an edit with one more change, whose line counts in the document after the edit."""
    start, end = change.line, change.line + len(change.old)
    before, after, touched, shift = [], [], [], 0
    for at, hunk in edit.placed():
        if at + len(hunk.new) < start:
            before.append(hunk)
            shift += hunk.delta
        elif at > end:
            after.append(hunk)
        else:
            touched.append((at, hunk))
    first, old, current, at = min([start, *(at for at, _ in touched)]), [], [], start
    for place, hunk in touched:  # between two of them lie lines of the change that were not changed before
        between = change.old[at - start : place - start] if place > at else ()
        old += [*between, *hunk.old]
        current += [*between, *hunk.new]
        at = place + len(hunk.new)
    rest = change.old[max(at - start, 0) :] if touched else change.old
    old += rest
    current += rest
    new = (*current[: start - first], *change.new, *current[start - first + len(change.old) :])
    line, trimmed_old, trimmed_new = _trimmed(first - shift, tuple(old), new)
    middle = [EditHunk(line, trimmed_old, trimmed_new)] if trimmed_old != trimmed_new else []
    return [*before, *middle, *after]


def _diff(edit: RecentEdit) -> str:
    lines = []
    for at, hunk in edit.placed():
        lines.append(f"@@ -{hunk.line + 1},{len(hunk.old)} +{at + 1},{len(hunk.new)} @@")
        lines += [f"-{line}" for line in hunk.old]
        lines += [f"+{line}" for line in hunk.new]
    return "\n".join(lines)
