"""Recent changes of open documents, grouped into edits: a run of typing is one edit.

A change becomes part of its document's latest edit if that edit is near and recent, or if it touches that edit's lines.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from localdflash.code.context.context import ContextPiece
from localdflash.code.context.denied import is_secret
from localdflash.code.context.files import clean_name
from localdflash.engine.common_prefix import count_common_ends

NEAR_LINES = 8  # greatest distance between changes of one edit
RECENT_SECONDS = 1.0  # longest time between changes of one edit
MAX_EDITS = 32  # edits kept, of all documents together
MAX_EDIT_CHARS = 3_000  # old and new lines together


@dataclass(frozen=True, slots=True)
class EditHunk:
    """Replaced lines. `line`: the first one, 0-based, in the document before the edit."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def delta(self) -> int:
        """Return the number of lines that the hunk adds."""
        return len(self.new) - len(self.old)


@dataclass(slots=True)
class RecentEdit:
    """Sorted hunks of one document; no two are adjacent."""

    document: str  # unique, such as a URI
    name: str  # shown to the model; several documents may share it
    hunks: list[EditHunk] = field(default_factory=list)
    changed_at: float = 0.0  # seconds, by the clock of `EditHistory.changed`

    def hunks_with_lines(self) -> Iterator[tuple[int, EditHunk]]:
        """Yield each hunk, with its first line in the document after the edit: (line, hunk)."""
        shift = 0
        for hunk in self.hunks:
            yield hunk.line + shift, hunk
            shift += hunk.delta

    def distance(self, first: int, last: int) -> int:
        """Return the number of lines between the edit and lines `first` to `last` of the document after the edit."""
        distances = (max(at - last, first - at - len(hunk.new), 0) for at, hunk in self.hunks_with_lines())
        return min(distances, default=NEAR_LINES + 1)

    def size(self) -> int:
        """Return the number of characters in old and new lines."""
        return sum(len(line) + 1 for hunk in self.hunks for line in (*hunk.old, *hunk.new))


class EditHistory:
    """The newest edits of all documents, which are told apart by `document`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._edits: list[RecentEdit] = []

    def changed(self, document: str, name: str, line: int, old: Sequence[str], new: Sequence[str], now: float) -> None:
        """Record that lines from `line` (0-based) on were replaced. Lines have no line endings; `now`: seconds."""
        if is_secret(PurePath(name)):
            return
        line, old, new = _trim(line, tuple(old), tuple(new))
        if old == new:
            return
        with self._lock:
            self._add(document, name, EditHunk(line, old, new), now)
            del self._edits[:-MAX_EDITS]

    def _add(self, document: str, name: str, change: EditHunk, now: float) -> None:
        edit = next((one for one in reversed(self._edits) if one.document == document), None)
        if edit and _continues(edit, change.line, change.line + len(change.old), now):
            merged = RecentEdit(document, name, _merge(edit, change), now)
            if merged.size() <= MAX_EDIT_CHARS:
                self._edits.remove(edit)
                self._edits += [merged] if merged.hunks else []
                return
        new_edit = RecentEdit(document, name, [change], now)
        # A change too large to keep leaves an empty edit: later changes must not merge with edits whose lines it moved.
        self._edits.append(new_edit if new_edit.size() <= MAX_EDIT_CHARS else RecentEdit(document, name, [], now))

    def edits(self) -> list[RecentEdit]:
        """Return all edits, newest last."""
        with self._lock:
            return [replace(edit, hunks=list(edit.hunks)) for edit in self._edits if edit.hunks]

    def diffs(self, limit: int, cursor: tuple[str, int] | None = None) -> list[ContextPiece]:
        """Return at most `limit` edits as diffs, newest last; without the newest if near `cursor` (document, line)."""
        edits = self.edits()
        newest = edits[-1] if edits else None
        if (
            cursor
            and newest
            and newest.document == cursor[0]
            and newest.distance(cursor[1], cursor[1] + 1) <= NEAR_LINES
        ):
            edits.pop()
        ages = range(min(limit, len(edits)), 0, -1)
        return [
            ContextPiece("edit", clean_name(edit.name), _diff(edit), 1 / age)
            for edit, age in zip(edits[len(edits) - len(ages) :], ages, strict=True)
        ]

    def replaced_texts(self, limit: int) -> list[str]:
        """Return at most `limit` texts that were replaced or deleted, newest first, for lookup drafts."""
        texts = ("\n".join(hunk.old) for edit in reversed(self.edits()) for hunk in reversed(edit.hunks))
        return list(dict.fromkeys(text for text in texts if text.strip()))[:limit]

    def forget(self, document: str) -> None:
        """Drop the edits of a document."""
        with self._lock:
            self._edits = [edit for edit in self._edits if edit.document != document]


def _continues(edit: RecentEdit, first: int, last: int, now: float) -> bool:
    is_recent_and_near = now - edit.changed_at <= RECENT_SECONDS and edit.distance(first, last) <= NEAR_LINES
    return is_recent_and_near or any(at < last and first < at + len(hunk.new) for at, hunk in edit.hunks_with_lines())


def _trim(line: int, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Return the change without equal lines at its start and end."""
    before, after = count_common_ends(old, new)
    return line + before, old[before : len(old) - after], new[before : len(new) - after]


def _merge(edit: RecentEdit, change: EditHunk) -> list[EditHunk]:
    """Return the hunks of an edit extended by a change. `change.line` is a line of the document after the edit."""
    start, end = change.line, change.line + len(change.old)
    before, after, touched, shift = [], [], [], 0
    for at, hunk in edit.hunks_with_lines():
        if at + len(hunk.new) < start:
            before.append(hunk)
            shift += hunk.delta
        elif at > end:
            after.append(hunk)
        else:
            touched.append((at, hunk))
    first, old, current, at = min([start, *(at for at, _ in touched)]), [], [], start
    for line, hunk in touched:  # lines between two hunks were not edited before: both old and current
        between = change.old[at - start : line - start] if line > at else ()
        old += [*between, *hunk.old]
        current += [*between, *hunk.new]
        at = line + len(hunk.new)
    rest = change.old[max(at - start, 0) :] if touched else change.old
    old += rest
    current += rest
    new = (*current[: start - first], *change.new, *current[start - first + len(change.old) :])
    line, trimmed_old, trimmed_new = _trim(first - shift, tuple(old), new)
    middle = [EditHunk(line, trimmed_old, trimmed_new)] if trimmed_old != trimmed_new else []
    return [*before, *middle, *after]


def _diff(edit: RecentEdit) -> str:
    lines = []
    for at, hunk in edit.hunks_with_lines():
        lines.append(f"@@ -{hunk.line + 1},{len(hunk.old)} +{at + 1},{len(hunk.new)} @@")
        lines += [f"-{line}" for line in hunk.old]
        lines += [f"+{line}" for line in hunk.new]
    return "\n".join(lines)
