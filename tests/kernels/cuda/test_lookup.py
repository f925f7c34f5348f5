"""Lookup on the device against a plain search for the longest suffix."""

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.kernels.cuda.lookup_kernel import MAX_MATCH, lookup, lookup_reference
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTED_BY, LIVE

Op = Callable[..., None]
OPS = pytest.mark.parametrize("op", [lookup, lookup_reference])
STAYS = ([500, *range(600, 615)], 7, 2)  # draft, LIVE and DRAFTED_BY before
PROGRAMS, POSITIONS = 3, 8


@pytest.fixture(autouse=True, scope="module")
def _small_programs() -> Iterator[None]:
    """Use few small programs, so that a short text needs several rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[lookup.__module__], "PROGRAMS", PROGRAMS)
        patch.setattr(sys.modules[lookup.__module__], "POSITIONS", POSITIONS)
        yield


def run(
    op: Op, text: list[int], documents: list[int], min_match: int, limit: int, launches: int = 1
) -> tuple[list[int], int, int]:
    """Return draft, LIVE and DRAFTED_BY after a search; unused memory contains matching tokens."""
    tokens = torch.tensor(text + text[:1] * 16, dtype=torch.int32)
    buffer = torch.tensor(documents + text[-1:] * 20, dtype=torch.int32)
    scratch = torch.zeros(2, dtype=torch.int64)
    for _ in range(launches):
        state, draft = torch.zeros(8, dtype=torch.int32), torch.tensor(STAYS[0], dtype=torch.int32)
        state[CONTEXT], state[LIVE], state[DRAFTED_BY] = len(text) - 1, *STAYS[1:]
        filled = torch.tensor([len(documents)], dtype=torch.int32)
        op(tokens, state, draft, buffer, filled, scratch, min_match, limit)
    assert scratch.tolist() == [0, 0]
    return draft.tolist(), int(state[LIVE]), int(state[DRAFTED_BY])


def expected(text: list[int], documents: list[int], min_match: int, limit: int) -> tuple[list[int], int, int]:
    """Try ever shorter suffixes; among equal lengths the newest position, the text before the documents."""
    for size in range(min(MAX_MATCH, len(text)), max(min_match, 1) - 1, -1):
        ending = text[-size:]
        for source, repeats in ((text, True), (documents, False)):
            for end in range(len(source) - 1, size - 1, -1):  # source[end] follows the match
                if source[end - size : end] != ending or source[end] < 0:
                    continue
                follows = source[end:] * (16 if repeats else 1)
                follows = follows[: follows.index(-1)] if -1 in follows else follows
                follows = follows[: min(limit, 15)]
                if not follows:
                    return STAYS
                return [500, *follows, *STAYS[0][len(follows) + 1 :]], 1 + len(follows), 1
    return STAYS


@OPS
@pytest.mark.parametrize(
    ("text", "documents", "follows"),
    [
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], [], [7, 6, 1, 2, 8, 5, 1, 2]),  # the longest match wins over the newest
        ([1, 2], [1, 2, 4, 5, 6, -1, 9, 1, 2], [4, 5, 6]),  # nothing follows at the end, nor across a break
        ([2, 1, 7, 8, 2, 1], [2, 1, 5], [7, 8, 2, 1, 7, 8, 2, 1]),  # the text before a document
        ([6], [6, 7, 8], None),  # one token is too short
    ],
)
def test_following_tokens_are_proposed(
    op: Op, text: list[int], documents: list[int], follows: list[int] | None
) -> None:
    found = run(op, text, documents, min_match=2, limit=8)
    assert found == (([500, *follows, *STAYS[0][len(follows) + 1 :]], 1 + len(follows), 1) if follows else STAYS)


@OPS
@settings(max_examples=12, deadline=None)
@given(
    text=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    documents=st.lists(st.integers(-1, 2), max_size=60),
    min_match=st.integers(0, 5),
    limit=st.integers(0, 20),
)
def test_search_matches_the_oracle(op: Op, text: list[int], documents: list[int], min_match: int, limit: int) -> None:
    assert run(op, text, documents, min_match, limit) == expected(text, documents, min_match, limit)


@pytest.mark.parametrize("place", [0, PROGRAMS * POSITIONS + 7])
def test_repeated_searches_find_positions_of_every_program(place: int) -> None:
    text = list(range(1000, 1020 + PROGRAMS * POSITIONS))
    ending = text[place : place + 5]
    follows = (text + ending)[place + 5 : place + 8]
    assert run(lookup, text + ending, [], 5, 3, launches=2)[0][1:4] == follows
    assert run(lookup, ending, text, 5, 3)[0][1:4] == follows
