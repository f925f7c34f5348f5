"""The drafter that copies: it proposes what followed the last time that the text ended like this.

It finds the longest earlier occurrence of the newest tokens in the prompt, in given documents and in the generated
text, and proposes what came after it. That costs microseconds. While an answer copies an earlier passage with changes
in it, the drafter keeps its place in the passage and picks it up again one token after a change. If nothing longer
agrees, the newest pair or single token still gives a guess: where a second row costs little, it is worth its place.
"""

from collections.abc import Sequence

from localdflash.engine.draft import EMPTY_DRAFT, MAX_DRAFT_TOKENS, Draft
from localdflash.engine.pair import TargetFeatures

GRAM = 3  # tokens that must agree before an occurrence counts more than the passage being copied
CANDIDATES = 8  # newest occurrences that are compared
LONGEST = 32  # agreement beyond this adds nothing
REACH = (4, 12)  # how far behind and ahead of the expected place a copy is picked up again
PICKED_UP = 3  # tokens of agreement that a copy counts for when it is picked up again
PATIENCE = 8  # proposals without a place before the copied passage is forgotten
BREAK = -1  # between documents
WAITING = 16  # tokens observed that wait for the next proposal to be read: those of a prompt do not


class LookupDrafter:
    """See `Drafter`."""

    name = "lookup"
    is_model = is_autoregressive = False
    unread_tokens = 0
    max_draft_tokens = MAX_DRAFT_TOKENS

    def __init__(self, documents: Sequence[Sequence[int]] = ()) -> None:
        self._start(documents)

    def _start(self, documents: Sequence[Sequence[int]]) -> None:
        self._documents = documents
        self._text: list[int] = []
        self._fresh: list[int] = []  # observed, not yet in the text: most steps of a fast model ask for nothing
        self._places: dict[tuple[int, ...], list[int]] = {}
        for document in documents:
            self._append([*document, BREAK])
        self._base = len(self._text)
        self._copying: int | None = None  # offset from a place in the sequence back to the passage it copies
        self._misses = 0

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """See `Pair`; what was observed stays."""
        if documents == self._documents:
            return
        self._read()
        observed = self._text[self._base :]
        self._start(documents)
        self._append(observed)

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None = None) -> None:
        """See `Drafter`."""
        self._fresh += ids
        if len(self._fresh) > WAITING:
            self._read()

    def _read(self) -> None:
        if self._fresh:
            self._append(self._fresh)
            self._fresh = []

    def _append(self, ids: Sequence[int]) -> None:
        text, places = self._text, self._places
        for token in ids:
            text.append(token)
            for gram in _grams(text):
                if gram in places:
                    places[gram].append(len(text) - 1)
                else:
                    places[gram] = [len(text) - 1]

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        self._read()
        text = self._text
        if length == self._base == 0:
            text.clear()
            self._places.clear()
        while len(text) > self._base + length:
            for gram in _grams(text):
                self._places[gram].pop()
                if not self._places[gram]:
                    del self._places[gram]
            text.pop()
        self._copying = None

    def save(self) -> bytes:
        """See `Drafter`. Empty: the ids hold everything."""
        return b""

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        self.rollback(0)
        self._append(ids)

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`."""
        self._read()
        place, agreement = self._find(anchor)
        self._keep_place(place if agreement >= PICKED_UP else None)
        if place is None:
            return EMPTY_DRAFT
        tokens = self._continuation(place, anchor, min(limit, self.max_draft_tokens))
        confidence = [trust(agreement + right) for right in range(len(tokens))]
        return Draft(self.name, tokens, confidence) if tokens else EMPTY_DRAFT

    def _continuation(self, place: int, anchor: int, most: int) -> list[int]:
        """What followed a place, up to the end of its document; a text that runs into itself repeats."""
        tokens = self._text[place + 1 : place + 1 + most]
        if BREAK in tokens:
            return tokens[: tokens.index(BREAK)]
        if len(tokens) < most:
            tokens.append(anchor)
            period = len(tokens)
            while len(tokens) < most:
                tokens.append(tokens[len(tokens) - period])
        return tokens

    def _keep_place(self, place: int | None) -> None:
        """Remember the passage being copied; forget it after too many steps without a match."""
        if place is not None:
            self._copying, self._misses = len(self._text) - place, 0
            return
        self._misses += 1
        if self._misses > PATIENCE:
            self._copying = None

    def _find(self, anchor: int) -> tuple[int | None, int]:
        """An earlier place of the anchor to continue from, and the tokens that agree there."""
        text, places = self._text, self._places
        if len(text) > 1 and (found := places.get((text[-2], text[-1], anchor))):
            return self._longest(found, GRAM)
        if (place := self._pick_up(anchor)) is not None:
            return place, PICKED_UP
        if text and (found := places.get((text[-1], anchor))):
            return self._longest(found, GRAM - 1)
        if found := places.get((anchor,)):
            return self._longest(found, GRAM - 2)
        return None, 0

    def _longest(self, places: list[int], size: int) -> tuple[int, int]:
        """Of the newest places where `size` tokens agree, the one where most do, and how many do."""
        text = self._text
        best, longest = places[-1], 0
        for place in places[: -CANDIDATES - 1 : -1]:
            agreement = size
            while (
                agreement < LONGEST
                and place - agreement >= 0
                and text[place - agreement] == text[len(text) - agreement]
            ):
                agreement += 1
            if agreement > longest:
                best, longest = place, agreement
        return best, longest

    def _pick_up(self, anchor: int) -> int | None:
        """The place of the anchor in the passage that was being copied, nearest to where it is expected."""
        if self._copying is None:
            return None
        text, expected = self._text, len(self._text) - self._copying
        behind, ahead = REACH
        if anchor not in text[max(expected - behind, 0) : expected + ahead + 1]:
            return None
        for distance in range(ahead + 1):
            for place in (expected + distance, expected - distance):
                if 0 <= place < len(text) and text[place] == anchor and expected - place <= behind:
                    return place
        return None


def trust(agreement: int) -> float:
    """The confidence in a token that follows so many that agree."""
    return agreement / (agreement + 2.0)


def _grams(text: list[int]) -> tuple[tuple[int, ...], ...]:
    """The newest token, pair and triple. Written out because it runs for every token."""
    last = text[-1]
    if len(text) > 2:
        return (last,), (text[-2], last), (text[-3], text[-2], last)
    return ((last,), (text[-2], last)) if len(text) == 2 else ((last,),)
