"""Prompt-lookup drafter: proposes what followed an earlier occurrence of the newest tokens.

Of the newest occurrences in documents, prompt and generated text, the drafter picks the one with the longest match.
While an answer copies a passage with changes, the drafter remembers its position in the passage; after a change, a
single matching token near that position resumes the copy. Without a trigram match, a bigram or a single token gives a
draft of low confidence. The first token's confidence grows with the share of occurrences that continue with it.
"""

from collections.abc import Sequence

from localdflash.engine.draft import EMPTY_DRAFT, MAX_DRAFT_TOKENS, Draft
from localdflash.engine.pair import TargetFeatures

GRAM_TOKENS = 3  # a match of this many tokens takes precedence over resuming a copy
MAX_CANDIDATES = 8  # newest occurrences whose match lengths are compared
MAX_MATCH_TOKENS = 32  # a longer match adds no confidence
TOKENS_BEHIND, TOKENS_AHEAD = 4, 12  # a copy resumes up to this far before or after its expected position
RESUMED_TOKENS = 3  # match length that a resumed copy counts as
MAX_MISSES = 8  # proposals in a row without a trigram match or a resumed copy, before the passage is forgotten
BREAK = -1  # pseudo-token that ends each document in `_text`
MAX_UNINDEXED_TOKENS = 16  # observed tokens that may wait for the next proposal


class LookupDrafter:
    """`Drafter` that copies from documents and from the sequence itself.

    The `anchor` of its methods is the newest token, which was not observed yet: its index is `len(self._text)`.
    """

    name = "lookup"
    is_model = False
    max_draft_tokens = MAX_DRAFT_TOKENS

    def __init__(self, documents: Sequence[Sequence[int]] = ()) -> None:
        self._reset(documents)

    def _reset(self, documents: Sequence[Sequence[int]]) -> None:
        self._documents = documents
        self._text: list[int] = []  # documents, then indexed tokens of the sequence
        self._unindexed: list[int] = []  # observed tokens, indexed only for a proposal: many steps need none
        self._positions: dict[tuple[int, ...], list[int]] = {}  # where each 1-, 2- and 3-gram ends
        for document in documents:
            self._append([*document, BREAK])
        self._base = len(self._text)  # where the sequence begins
        self._copy_offset: int | None = None  # distance from the copied position to the anchor; None: no copy
        self._misses = 0

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Replace the documents; keep the observed tokens."""
        if documents == self._documents:
            return
        self._index()
        observed = self._text[self._base :]
        self._reset(documents)
        self._append(observed)

    def observe(self, ids: Sequence[int], features: TargetFeatures | None = None) -> None:
        """See `Drafter`."""
        self._unindexed += ids
        if len(self._unindexed) > MAX_UNINDEXED_TOKENS:
            self._index()

    def _index(self) -> None:
        if self._unindexed:
            self._append(self._unindexed)
            self._unindexed = []

    def _append(self, ids: Sequence[int]) -> None:
        text, positions = self._text, self._positions
        for token in ids:
            text.append(token)
            for gram in _newest_grams(text):
                if gram in positions:
                    positions[gram].append(len(text) - 1)
                else:
                    positions[gram] = [len(text) - 1]

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        self._index()
        text = self._text
        if length == 0 and self._base == 0:  # nothing is left: faster than token by token
            text.clear()
            self._positions.clear()
        while len(text) > self._base + length:
            for gram in _newest_grams(text):
                self._positions[gram].pop()
                if not self._positions[gram]:
                    del self._positions[gram]
            text.pop()
        self._copy_offset = None

    def save(self) -> bytes:
        """Return no state: `load` builds the index from the ids."""
        return b""

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        self.rollback(0)
        self._append(ids)

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`."""
        self._index()
        position, match, candidates = self._find_match(anchor)
        if position is not None and match >= RESUMED_TOKENS:
            self._copy_offset, self._misses = len(self._text) - position, 0
        else:
            self._misses += 1
            if self._misses > MAX_MISSES:
                self._copy_offset = None
        if position is None:
            return EMPTY_DRAFT
        tokens = self._continue_from(position, anchor, min(limit, self.max_draft_tokens))
        if not tokens:
            return EMPTY_DRAFT
        # A token's confidence assumes that the tokens before it are right, which makes the match that much longer.
        confidence = [length / (length + 2.0) for length in range(match, match + len(tokens))]
        next_tokens = [following for each in candidates if (following := self._continue_from(each, anchor, 1))]
        confidence[0] *= next_tokens.count(tokens[:1]) / len(next_tokens)
        return Draft(self.name, tokens, confidence)

    def _continue_from(self, position: int, anchor: int, count: int) -> list[int]:
        """Return up to `count` tokens after a position in its document; past the text, repeat them with the anchor."""
        tokens = self._text[position + 1 : position + 1 + count]
        if BREAK in tokens:
            return tokens[: tokens.index(BREAK)]
        if len(tokens) < count:
            tokens.append(anchor)
            period = len(tokens)
            while len(tokens) < count:
                tokens.append(tokens[len(tokens) - period])
        return tokens

    def _find_match(self, anchor: int) -> tuple[int | None, int, Sequence[int]]:
        """Return an earlier position of the anchor (or None), the match length there, and all positions compared."""
        text, positions = self._text, self._positions
        if len(text) > 1 and (matches := positions.get((text[-2], text[-1], anchor))):
            return self._longest_match(matches, GRAM_TOKENS)
        if (position := self._resume_copy(anchor)) is not None:
            return position, RESUMED_TOKENS, [position]
        if text and (matches := positions.get((text[-1], anchor))):
            return self._longest_match(matches, GRAM_TOKENS - 1)
        if matches := positions.get((anchor,)):
            return self._longest_match(matches, GRAM_TOKENS - 2)
        return None, 0, ()

    def _longest_match(self, positions: list[int], size: int) -> tuple[int, int, Sequence[int]]:
        """Return the position of the longest match, its length (at least `size`), and all positions compared."""
        text, candidates = self._text, positions[: -MAX_CANDIDATES - 1 : -1]
        best, longest = positions[-1], 0
        for position in candidates:
            match, limit = size, min(MAX_MATCH_TOKENS, position + 1)
            while match < limit and text[position - match] == text[len(text) - match]:
                match += 1
            if match > longest:
                best, longest = position, match
        return best, longest, candidates

    def _resume_copy(self, anchor: int) -> int | None:
        """Return the position of the anchor in the copied passage that is nearest to the expected one."""
        if self._copy_offset is None:
            return None
        text, expected = self._text, len(self._text) - self._copy_offset
        if anchor not in text[max(expected - TOKENS_BEHIND, 0) : expected + TOKENS_AHEAD + 1]:
            return None
        for distance in range(TOKENS_AHEAD + 1):
            for position in (expected + distance, expected - distance):
                if 0 <= position < len(text) and text[position] == anchor and expected - position <= TOKENS_BEHIND:
                    return position
        return None


def _newest_grams(text: list[int]) -> tuple[tuple[int, ...], ...]:
    """Return the newest 1-, 2- and 3-gram. Written out because this function runs for every token."""
    last = text[-1]
    if len(text) > 2:
        return (last,), (text[-2], last), (text[-3], text[-2], last)
    return ((last,), (text[-2], last)) if len(text) == 2 else ((last,),)
