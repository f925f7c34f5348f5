"""How a document came to be what it is: the texts between one edit and the next.

Changes that touch are one edit. A text that was there before came back by undo or redo, and after several changes at
once nobody can say what was meant: both begin anew, and nothing is proposed.
"""

import re
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from localdflash.code.next_edit.source import Proposal

STEPS = 5  # texts between edits that are kept
REMEMBERED = 64  # texts that are known again, and patterns that are not wanted
_FIRST_WORD, _LAST_WORD = re.compile(r"^\w+"), re.compile(r"\w+$")
Place = tuple[int, int]  # line and column in characters, from 0


@dataclass(frozen=True, slots=True)
class _Offered:
    """A proposal, the text that it is for and the one that it leads to."""

    proposal: Proposal
    text: str
    accepted: str


class EditTrail:
    """The edits of one document. Texts have LF as line ends."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps: deque[str] = deque(maxlen=STEPS)  # the texts before each edit
        self._left: deque[int] = deque(maxlen=REMEMBERED)  # hashes of such texts
        self._start = self._end = (-1, 0)  # of the present edit
        self._begun = 0  # edits in the present notification
        self._offered: _Offered | None = None
        self._taken: _Offered | None = None  # what was accepted last
        self._unwanted: deque[Hashable] = deque(maxlen=REMEMBERED)

    def edited(self, line: int, old: Sequence[str], new: Sequence[str], text: str) -> None:
        """Take note of one change: lines that were replaced, and the whole text after it."""
        start, old_end, new_end = _trimmed(line, old, new)
        if self._is_accepted(text) or start > self._end or old_end < self._start:
            self._begin()
            self._start, self._end = start, new_end
        else:
            end = _moved(self._end, old_end, new_end) if self._end > old_end else new_end
            self._start, self._end = min(self._start, start), max(end, new_end)
        # With the rest of its words: where a letter is replaced by itself, less seems to have changed.
        self._start = min(self._start, _word_start(start, line, new))
        self._end = max(self._end, _word_end(new_end, line, new))
        self.text = text

    def notified(self) -> bool:
        """Take note that these were all changes that came together. Whether a proposal was accepted by them."""
        if self._begun > 1:
            self._steps.clear()
            self._start = self._end = (-1, 0)
        self._begun = 0
        if self._taken and self.text == self._taken.text:  # it was undone
            self._unwanted.append(self._taken.proposal.pattern)
        accepted = self._is_accepted(self.text)
        if accepted:
            self._taken, self._offered = self._offered, None
        return accepted

    def steps(self) -> list[str]:
        """The texts before the latest edits and the present one, oldest first; none where nothing is to be proposed."""
        if not self._steps or self._steps[-1] == self.text or hash(self.text) in self._left:
            return []
        return [*self._steps, self.text]

    def offer(self, proposal: Proposal, accepted: str) -> bool:
        """Take note of a proposal for the present text; whether it may be made."""
        if proposal.pattern in self._unwanted:
            return False
        self._offered = _Offered(proposal, self.text, accepted)
        return True

    def refuse(self) -> None:
        """The user does not want what was proposed: nothing like it again."""
        if self._offered:
            self._unwanted.append(self._offered.proposal.pattern)
            self._offered = None

    def _is_accepted(self, text: str) -> bool:
        return self._offered is not None and text == self._offered.accepted

    def _begin(self) -> None:
        self._steps.append(self.text)
        self._left.append(hash(self.text))
        self._begun += 1


def _trimmed(line: int, old: Sequence[str], new: Sequence[str]) -> tuple[Place, Place, Place]:
    """Where the change starts, where it ended before and where it ends now."""
    if not old or not new:
        return (line, 0), (line + len(old), 0), (line + len(new), 0)
    head = _common(old[0], new[0])
    kept = [lines[-1][head:] if len(lines) == 1 else lines[-1] for lines in (old, new)]
    tail = _common(kept[0][::-1], kept[1][::-1])
    old_end = (line + len(old) - 1, len(old[-1]) - tail)
    return (line, head), old_end, (line + len(new) - 1, len(new[-1]) - tail)


def _word_start(place: Place, line: int, lines: Sequence[str]) -> Place:
    """Where the word begins that ends at a place."""
    head = lines[place[0] - line][: place[1]] if place[0] - line < len(lines) else ""
    return place[0], place[1] - len(head) + len(_LAST_WORD.sub("", head))


def _word_end(place: Place, line: int, lines: Sequence[str]) -> Place:
    """Where the word ends that begins at a place."""
    tail = lines[place[0] - line][place[1] :] if place[0] - line < len(lines) else ""
    return place[0], place[1] + len(tail) - len(_FIRST_WORD.sub("", tail))


def _common(one: str, other: str) -> int:
    """The number of characters that both begin with."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _moved(place: Place, old_end: Place, new_end: Place) -> Place:
    """Where a place behind a change has gone."""
    if place[0] > old_end[0]:
        return place[0] + new_end[0] - old_end[0], place[1]
    return new_end[0], place[1] + new_end[1] - old_end[1]
