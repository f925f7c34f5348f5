"""Lookup drafts against a search of the whole text: longest match, rollback, documents, changed copies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.engine.lookup import BREAK, LookupDrafter

TOKENS = st.integers(0, 3)
TEXTS = st.lists(TOKENS, max_size=60)
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=20), max_size=3)


def expected(documents: list[list[int]], ids: list[int], anchor: int, limit: int) -> tuple[list[int], list[float]]:
    """Return tokens and confidence by comparing the end of the text with every position in it."""
    text = [token for document in documents for token in [*document, BREAK]] + ids + [anchor]

    def agreement(place: int) -> int:
        count = 0
        while count < 32 and place - count >= 0 and text[place - count] == text[len(text) - 1 - count]:
            count += 1
        return count

    agreements = {place: agreement(place) for place in range(len(text) - 1)}
    for least in (3, 2, 1):
        newest = [place for place, count in reversed(agreements.items()) if count >= least][:8]
        if newest:
            best = max(newest, key=lambda place: (agreements[place], place))
            tokens: list[int] = []
            while len(tokens) < limit and (following := (text + tokens)[best + 1 + len(tokens)]) != BREAK:
                tokens.append(following)
            confidence = rising(agreements[best], len(tokens))
            if tokens:
                following_tokens = [text[place + 1] for place in newest if text[place + 1] != BREAK]
                confidence[0] *= following_tokens.count(tokens[0]) / len(following_tokens)
            return tokens, confidence
    return [], []


def rising(agreement: int, count: int) -> list[float]:
    """Return the confidence of `count` tokens: each accepted one makes the match longer."""
    return [(agreement + right) / (agreement + right + 2) for right in range(count)]


def places_of(drafter: LookupDrafter) -> object:
    """Return the whole index, unindexed tokens included."""
    drafter._index()
    return drafter._positions


@settings(max_examples=120, deadline=None)
@given(documents=DOCUMENTS, ids=TEXTS, anchor=TOKENS, limit=st.integers(1, 12))
def test_the_longest_agreement_among_the_newest_places_wins(
    documents: list[list[int]], ids: list[int], anchor: int, limit: int
) -> None:
    drafter = LookupDrafter(documents)
    drafter.observe(ids)
    draft = drafter.propose(anchor, limit)
    tokens, confidence = expected(documents, ids, anchor, limit)
    assert list(draft.tokens) == tokens
    assert list(draft.confidence) == pytest.approx(confidence)


@settings(deadline=None)
@given(
    documents=DOCUMENTS,
    kept=TEXTS,
    dropped=st.lists(TEXTS, max_size=3),
    after=TEXTS,
    asked=st.lists(st.tuples(TOKENS, st.integers(1, 9)), max_size=3),
)
def test_what_was_rolled_back_leaves_no_trace(
    documents: list[list[int]],
    kept: list[int],
    dropped: list[list[int]],
    after: list[int],
    asked: list[tuple[int, int]],
) -> None:
    used, fresh = LookupDrafter(documents), LookupDrafter(documents)
    used.observe(kept)
    for ids in dropped:
        used.observe(ids)
        for anchor, limit in asked:
            assert BREAK not in used.propose(anchor, limit).tokens
        used.rollback(len(kept))
    used.observe(after)
    fresh.observe(kept + after)
    assert places_of(used) == places_of(fresh)
    for anchor in range(4):
        assert used.propose(anchor, 9) == fresh.propose(anchor, 9)


# A passage in which every other token is the same: only its place tells which of them comes next.
COMMA = 99
PASSAGE = [token for name in range(40) for token in (name, COMMA)]


def copy(drafter: LookupDrafter, ids: list[int]) -> None:
    """Generate these ids step by step."""
    for token in ids:
        drafter.propose(token, 4)
        drafter.observe([token])


@pytest.mark.parametrize(
    ("written", "anchor", "tokens"),
    [
        ([77], COMMA, [11, COMMA, 12]),  # in place of 10
        ([77], 12, [COMMA, 13, COMMA]),  # 11 and its commas are missing
        ([77, 78, 79], 11, [COMMA, 12, COMMA]),  # tokens were put in
        ([200 + i for i in range(8)], COMMA, [15, COMMA, 16]),
        ([200 + i for i in range(9)], COMMA, [200, 201, 202]),  # forgotten: the newest comma's, not the passage's
    ],
)
def test_a_copy_goes_on_after_a_change(written: list[int], anchor: int, tokens: list[int]) -> None:
    drafter = LookupDrafter([PASSAGE])
    copy(drafter, PASSAGE[:20])  # names 0 to 9
    copy(drafter, written)
    assert list(drafter.propose(anchor, 3).tokens) == tokens


def resumed(*distances: int) -> int:
    """Return where a copy goes on whose next token is at these distances from the expected place, and far away."""
    text, expected, token = list(range(100, 170)), 21, 98
    for place in (68, *(expected + distance for distance in distances)):
        text[place] = token
    drafter = LookupDrafter([text])
    copy(drafter, [55 if one == token else one for one in text[:20]])
    copy(drafter, [77])  # in place of what stands at 20
    return int(drafter.propose(token, 2).tokens[0]) - 100 - 1 - expected


@pytest.mark.parametrize(
    ("distances", "at"),
    [((-4,), -4), ((-5,), 47), ((12,), 12), ((13,), 47), ((-2, 3), -2), ((-3, 2), 2), ((-2, 2), 2)],
)
def test_a_copy_is_resumed_at_the_nearest_place(distances: tuple[int, ...], at: int) -> None:
    """Four tokens behind the expected one to twelve ahead, the one ahead first; else at the newest place, 47 ahead."""
    assert resumed(*distances) == at


def test_occurrences_that_continue_differently_make_the_first_token_less_certain() -> None:
    drafter = LookupDrafter([[7, 1, 2, 3, 4], [8, 1, 2, 3, 5], [9, 1, 2, 3, 5]])
    drafter.observe([6, 1, 2])
    draft = drafter.propose(3, 1)
    assert list(draft.tokens) == [5]
    assert list(draft.confidence) == pytest.approx([3 / 5 * 2 / 3])
