"""History of a document: its texts between edits. Undo, redo and several edits at once restart the history."""

import re
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MAX_STEPS = 5  # texts kept
MAX_REMEMBERED = 64  # earlier texts, and rejected patterns
_FIRST_WORD, _LAST_WORD = re.compile(r"^\w+"), re.compile(r"\w+$")
Position = tuple[int, int]  # line and column in characters, both 0-based
LineEdit = tuple[int, Sequence[str], Sequence[str]]  # first line, lines removed, lines added; without line endings


@dataclass(frozen=True, slots=True)
class _Offer:
    """Pattern of a proposal, the text it applies to, and the text after it is accepted."""

    pattern: Hashable
    text: str
    accepted: str


class EditTrail:
    """Edits and offered proposals of one document. Adjacent changes form one edit. Texts have LF line ends."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.cursor: Position = (0, 0)  # end of the latest change
        self._steps: deque[str] = deque(maxlen=MAX_STEPS)  # the texts before each edit
        self._past: deque[int] = deque(maxlen=MAX_REMEMBERED)  # hashes of the texts before each edit
        self._start = self._end = (-1, 0)  # range of the current edit
        self._offered: _Offer | None = None
        self._accepted: _Offer | None = None  # the last accepted proposal
        self._rejected: deque[Hashable] = deque(maxlen=MAX_REMEMBERED)  # patterns of proposals

    def edited(self, changes: Sequence[LineEdit], text: str) -> bool:
        """Record the changes of one notification and the text after them; return whether they accepted a proposal."""
        accepted = self._offered is not None and text == self._offered.accepted
        begun = [self._add(change, begin=accepted and not number) for number, change in enumerate(changes)]
        if any(begun):
            self._steps.append(self.text)
            self._past.append(hash(self.text))
        if any(begun[1:]):  # several edits at once
            self._steps.clear()
            self._start = self._end = (-1, 0)
        self.text = text
        if self._accepted and text == self._accepted.text:  # the user undid the accepted proposal
            self._rejected.append(self._accepted.pattern)
        if accepted:
            self._accepted, self._offered = self._offered, None
        return accepted

    def steps(self) -> list[str]:
        """Return the texts before the latest edits, then the current text; [] after undo, redo or no change."""
        if not self._steps or self._steps[-1] == self.text or hash(self.text) in self._past:
            return []
        return [*self._steps, self.text]

    def offer(self, pattern: Hashable, accepted: str) -> bool:
        """Record a proposal and the text after it is accepted; return False if its pattern was rejected before."""
        if pattern in self._rejected:
            return False
        self._offered = _Offer(pattern, self.text, accepted)
        return True

    def reject(self) -> None:
        """Record that the user rejected the proposal."""
        if self._offered:
            self._rejected.append(self._offered.pattern)
            self._offered = None

    def _add(self, change: LineEdit, *, begin: bool) -> bool:
        """Extend the current edit by a change, or begin one if `begin` or it is elsewhere; return whether one began."""
        line, old, new = change
        start, old_end, new_end = _changed_range(line, old, new)
        self.cursor = new_end
        begin = begin or start > self._end or old_end < self._start
        if begin:
            self._start, self._end = start, new_end
        else:
            end = _moved(self._end, old_end, new_end) if self._end > old_end else new_end
            self._start, self._end = min(self._start, start), max(end, new_end)
        # Extend to whole words: a letter typed over itself is invisible in the change.
        self._start = min(self._start, _word_start(start, line, new))
        self._end = max(self._end, _word_end(new_end, line, new))
        return begin


def _changed_range(line: int, old: Sequence[str], new: Sequence[str]) -> tuple[Position, Position, Position]:
    """Return the start of a change, its end in the old text and its end in the new text."""
    if not old or not new:
        return (line, 0), (line + len(old), 0), (line + len(new), 0)
    head = _common_length(old[0], new[0])
    remaining = [lines[-1][head:] if len(lines) == 1 else lines[-1] for lines in (old, new)]
    tail = _common_length(remaining[0][::-1], remaining[1][::-1])
    old_end = (line + len(old) - 1, len(old[-1]) - tail)
    return (line, head), old_end, (line + len(new) - 1, len(new[-1]) - tail)


def _word_start(position: Position, line: int, lines: Sequence[str]) -> Position:
    head = lines[position[0] - line][: position[1]] if position[0] - line < len(lines) else ""
    return position[0], position[1] - len(head) + len(_LAST_WORD.sub("", head))


def _word_end(position: Position, line: int, lines: Sequence[str]) -> Position:
    tail = lines[position[0] - line][position[1] :] if position[0] - line < len(lines) else ""
    return position[0], position[1] + len(tail) - len(_FIRST_WORD.sub("", tail))


def _common_length(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _moved(position: Position, old_end: Position, new_end: Position) -> Position:
    if position[0] > old_end[0]:
        return position[0] + new_end[0] - old_end[0], position[1]
    return new_end[0], position[1] + new_end[1] - old_end[1]
