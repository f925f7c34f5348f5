"""Suggestions: texts that may stand at a cursor, found again by what was typed since.

A *spot* is the text before an anchor and after the cursor; what is typed at a spot lies between the two. A suggestion
is asked for when so much has been typed, and grows until its generation ends. As long as what is typed agrees with it,
it is the answer, whether it was shown before, is being generated, or was generated ahead.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

STOPPED, FAILED = "stopped", "failed"  # why a suggestion ended that was not wanted any more, or had no engine
SPOTS, MOST = 64, 64  # spots remembered, and suggestions for each: looking through them takes microseconds
LARGEST = 16_000_000  # characters of all spots but the newest: each has the whole document

_names = count(1)


class Spot(NamedTuple):
    """A place in a document."""

    uri: str
    before: str  # up to the anchor
    after: str  # from the cursor on


@dataclass(eq=False)
class Suggestion:
    """A text for a spot. `ended` says why it is complete; it is empty while more may come."""

    spot: Spot
    typed: str  # between anchor and cursor when it was asked for
    text: str = ""
    # Geometric mean of the probabilities of its first tokens: those of all tell less of whether it will be accepted.
    # None: the engine cannot tell.
    confidence: float | None = None
    ended: str = ""
    name: str = field(default_factory=lambda: str(next(_names)))

    def rest(self, typed: str) -> str | None:
        """What is left of it after so much was typed; None if the two disagree.

        Empty if nothing is left, or while the user is ahead of a text that still grows.
        """
        whole = self.typed + self.text
        if whole.startswith(typed):
            return whole[len(typed) :]
        return "" if not self.ended and typed.startswith(whole) else None

    def cut_off(self, reason: str) -> None:
        """Drop the last line: the generation ended before the text did, so nobody knows how it goes on."""
        if not self.ended:
            self.text, self.ended = whole_lines(self.text), reason

    def answers(self, typed: str) -> bool:
        """Whether what is typed needs no new generation: this one says how it goes on, will say so, or found no more.

        One that was generated ahead does not answer before so much is typed.
        """
        rest = self.rest(typed) if typed.startswith(self.typed) else None
        if not rest:
            said_nothing = typed == self.typed and self.ended not in (STOPPED, FAILED)
            return rest is not None and (not self.ended or said_nothing)
        return True


class NewestSuggestions:
    """The newest suggestions of the newest spots."""

    def __init__(self) -> None:
        self._spots: OrderedDict[Spot, list[Suggestion]] = OrderedDict()

    def add(self, suggestion: Suggestion) -> None:
        """Remember a suggestion, which may still grow."""
        known = self._spots.setdefault(suggestion.spot, [])
        self._spots.move_to_end(suggestion.spot)
        known.append(suggestion)
        del known[:-MOST]
        while len(self._spots) > 1 and (len(self._spots) > SPOTS or self._size() > LARGEST):
            self._spots.popitem(last=False)

    def find(self, spot: Spot, typed: str) -> Suggestion | None:
        """The suggestion that answers: of those that began at the latest place, the newest."""
        return max(self._answering(spot, typed), key=lambda found: len(found.typed), default=None)

    def _answering(self, spot: Spot, typed: str) -> Iterator[Suggestion]:
        for suggestion in reversed(self._spots.get(spot, ())):
            if suggestion.answers(typed):
                yield suggestion

    def _size(self) -> int:
        return sum(len(spot.before) + len(spot.after) for spot in self._spots)


def whole_lines(text: str) -> str:
    """The text without its last line, which may be incomplete."""
    return text[: text.rfind("\n") + 1].rstrip()


def whole_words(text: str) -> str:
    """The text without its last word, which may be incomplete."""
    words = text.rstrip()
    while words and (words[-1].isalnum() or words[-1] == "_"):
        words = words[:-1]
    return words.rstrip()


def between(text: str, spot: Spot) -> str | None:
    """What is typed at a spot in this text; None if the text around the spot is another one."""
    end = len(text) - len(spot.after)
    if end < len(spot.before) or not text.startswith(spot.before) or not text.endswith(spot.after):
        return None
    return text[len(spot.before) : end]
