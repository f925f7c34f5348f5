"""Lookup against a search of the whole text: longest agreement, rollback, documents, copies with changes in them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.engine.lookup import (
    BREAK,
    GRAM_TOKENS,
    MAX_CANDIDATES,
    MAX_MATCH_TOKENS,
    MAX_MISSES,
    RESUMED_TOKENS,
    TOKENS_AHEAD,
    TOKENS_BEHIND,
    LookupDrafter,
)

TOKENS = st.integers(0, 3)
TEXTS = st.lists(TOKENS, max_size=60)
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=20), max_size=3)


def expected(documents: list[list[int]], ids: list[int], anchor: int, limit: int) -> tuple[list[int], list[float]]:
    """Tokens and confidence by comparing the end of the text with every place in it."""
    text = [token for document in documents for token in [*document, BREAK]] + ids + [anchor]

    def agreement(place: int) -> int:
        count = 0
        while count < MAX_MATCH_TOKENS and place - count >= 0 and text[place - count] == text[len(text) - 1 - count]:
            count += 1
        return count

    agreements = {place: agreement(place) for place in range(len(text) - 1)}
    for least in range(GRAM_TOKENS, 0, -1):
        newest = [place for place, count in reversed(agreements.items()) if count >= least][:MAX_CANDIDATES]
        if newest:
            best = max(newest, key=lambda place: (agreements[place], place))
            tokens: list[int] = []
            while len(tokens) < limit and (following := (text + tokens)[best + 1 + len(tokens)]) != BREAK:
                tokens.append(following)
            return tokens, rising(agreements[best], len(tokens))
    return [], []


def rising(agreement: int, count: int) -> list[float]:
    """The confidence in so many tokens: each that is right makes the agreement longer."""
    return [(agreement + right) / (agreement + right + 2) for right in range(count)]


def places_of(drafter: LookupDrafter) -> object:
    """Everything that it knows, what it has not read yet included."""
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


@given(documents=DOCUMENTS, before=TEXTS, ids=TEXTS)
def test_a_loaded_state_is_the_sequence_and_the_documents(
    documents: list[list[int]], before: list[int], ids: list[int]
) -> None:
    saved, loaded = LookupDrafter(documents), LookupDrafter(documents)
    saved.observe(ids)
    loaded.observe(before)
    loaded.load(saved.save(), ids)
    assert places_of(loaded) == places_of(saved)
    assert loaded.propose(1, 9) == saved.propose(1, 9)


def test_how_a_text_is_cut_does_not_matter() -> None:
    ids = [1, 2, 3, 4, 1, 2, 3, 4, 1]
    whole, pieces = LookupDrafter(), LookupDrafter()
    whole.observe(ids)
    for token in ids:
        pieces.observe([token])
    assert whole.propose(2, 5) == pieces.propose(2, 5)


def test_a_repetition_goes_on_for_as_long_as_is_asked() -> None:
    drafter = LookupDrafter()
    drafter.observe([9, 1, 2, 3, 1, 2])
    assert list(drafter.propose(3, 8).tokens) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_nothing_is_proposed_for_what_was_never_seen() -> None:
    drafter = LookupDrafter([[1, 2, 3]])
    assert not drafter.propose(7, 5)
    drafter.observe([4, 5])
    assert not drafter.propose(7, 5)


def test_a_proposal_ends_where_its_document_ends() -> None:
    drafter = LookupDrafter([[1, 2, 3, 4], [5, 6]])
    drafter.observe([1, 2])
    assert list(drafter.propose(3, 9).tokens) == [4]
    drafter.observe([3])
    assert not drafter.propose(4, 9)  # the last token of its document


def test_documents_outlive_a_rollback_to_nothing() -> None:
    drafter = LookupDrafter([[1, 2, 3, 4]])
    drafter.observe([1, 2, 3, 9])
    drafter.rollback(0)
    drafter.observe([1, 2])
    assert list(drafter.propose(3, 9).tokens) == [4]


# A passage in which every other token is the same: only its place tells which of them comes next.
COMMA = 99
PASSAGE = [token for name in range(40) for token in (name, COMMA)]


def copy(drafter: LookupDrafter, ids: list[int]) -> None:
    """Generate these ids step by step."""
    for token in ids:
        drafter.propose(token, 4)
        drafter.observe([token])


@pytest.fixture
def copying() -> LookupDrafter:
    """In the middle of a copy of PASSAGE: names 0 to 9 are written."""
    drafter = LookupDrafter([PASSAGE])
    copy(drafter, PASSAGE[:20])
    return drafter


def test_a_copy_goes_on_after_a_changed_token(copying: LookupDrafter) -> None:
    copy(copying, [77])  # in place of 10
    draft = copying.propose(COMMA, 3)
    assert list(draft.tokens) == [11, COMMA, 12]
    assert list(draft.confidence) == rising(RESUMED_TOKENS, 3)


def test_a_copy_goes_on_after_tokens_were_left_out(copying: LookupDrafter) -> None:
    copy(copying, [77])
    assert list(copying.propose(12, 3).tokens) == [COMMA, 13, COMMA]  # 11 and its commas are missing


def test_a_copy_goes_on_after_tokens_were_put_in(copying: LookupDrafter) -> None:
    copy(copying, [77, 78, 79])
    assert list(copying.propose(11, 3).tokens) == [COMMA, 12, COMMA]


def test_a_copy_is_not_picked_up_out_of_reach() -> None:
    drafter = LookupDrafter([[*range(40), 50, 60]])
    drafter.observe([50])  # also written before: the newest place of 50 is this one
    copy(drafter, [*range(10), 77])
    expected_place = 11
    draft = drafter.propose(expected_place + TOKENS_AHEAD + 1, 3)
    assert list(draft.confidence) == rising(1, 3)  # found as a single token, not as the place in the copy
    assert list(drafter.propose(expected_place + TOKENS_AHEAD, 3).confidence) == rising(RESUMED_TOKENS, 3)


def test_a_copy_is_not_picked_up_too_far_behind() -> None:
    drafter = LookupDrafter([[*range(40)]])
    copy(drafter, [*range(10), 77])
    assert list(drafter.propose(11 - TOKENS_BEHIND - 1, 3).confidence) == rising(1, 3)
    assert list(drafter.propose(11 - TOKENS_BEHIND, 3).confidence) == rising(RESUMED_TOKENS, 3)


def test_only_the_newest_places_are_compared() -> None:
    end = [1, 2, 3, 4]
    best = [*end, 50]  # agrees in all of the end, and is older than the others
    others = [token for i in range(MAX_CANDIDATES) for token in (100 + i, 2, 3, 4, 60 + i)]
    drafter = LookupDrafter()
    drafter.observe([*best, *others, 1, 2, 3])
    assert drafter.propose(4, 1).tokens == [60 + MAX_CANDIDATES - 1]
    drafter.rollback(0)
    drafter.observe([*best, *others[5:], 1, 2, 3])
    assert drafter.propose(4, 1).tokens == [50]


def test_a_copy_is_forgotten_after_too_long_without(copying: LookupDrafter) -> None:
    assert copying._copy_offset is not None
    copy(copying, [200 + i for i in range(MAX_MISSES + 1)])
    assert copying.propose(COMMA, 2).tokens[0] == 200  # the newest comma's, not the passage's


def test_a_rollback_forgets_the_copy(copying: LookupDrafter) -> None:
    copying.observe([77])
    copying.rollback(20)
    copying.observe([77])
    assert list(copying.propose(COMMA, 1).tokens) == [77]
