"""The small launches of a step in the interpreter: the resulting state, and acceptance against a walk."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from localdflash.kernels.cuda import rounds
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTED_BY, LIVE, RECORD, STATUS, STEP

Op = Callable[..., None]
TOKENS = torch.arange(1000, 1100, dtype=torch.int32)


def both(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", [getattr(rounds, name), getattr(rounds, f"{name}_reference")])


def state_of(context: int, drafter: int = 0) -> Tensor:
    return torch.tensor([context, drafter, 9, 30, 60, 0, 2, 80], dtype=torch.int32)


@both("begin")
def test_a_round_begins_with_the_anchor_alone(op: Op) -> None:
    state, draft = state_of(41, 3), torch.full((16,), -7, dtype=torch.int32)
    op(TOKENS, state, draft, 77)
    assert draft.tolist() == [1041] + [77] * 15
    assert state.tolist() == [41, 3, 1, 30, 60, 0, 0, 80]


@both("next_tokens")
@pytest.mark.parametrize("context", [0, 69])
def test_next_tokens_are_read_to_the_end_of_the_buffer(op: Op, context: int) -> None:
    state, ids = state_of(context), torch.full((2, 16), -7, dtype=torch.int32)
    op(TOKENS, state, ids)
    found = TOKENS[context : context + 32].tolist()
    assert ids.flatten().tolist() == found + [0] * (32 - len(found))
    assert state.tolist() == [context, 0, 16, 30, context + 16, 0, 2, 80]


@both("propose")
@pytest.mark.parametrize(
    ("first", "count", "broken", "live"), [(1, 15, 99, 16), (0, 8, 7, 8), (1, 7, 0, 8), (1, 7, 1, 1), (1, 7, 9, 8)]
)
def test_a_block_is_proposed_up_to_a_slot_without_numbers(
    op: Op, first: int, count: int, broken: int, live: int
) -> None:
    choice, draft = torch.arange(500, 516, dtype=torch.int32), torch.full((16,), 5, dtype=torch.int32)
    choice[broken : broken + 1] = -1
    state = state_of(40)
    op(choice, state, draft, first, count)
    assert draft.tolist() == [5, *range(500 + first, 499 + first + live)] + [0] * (16 - live)
    assert state[[LIVE, DRAFTED_BY]].tolist() == [live, 2 if live > 1 else 0]


@both("caught_up")
@pytest.mark.parametrize(("context", "seen", "after"), [(0, 0, 0), (40, 8, 24), (40, 25, 40)])
def test_drafter_advances_by_sixteen_more_at_most_to_the_context(op: Op, context: int, seen: int, after: int) -> None:
    state = state_of(context, seen)
    op(state)
    assert state.tolist() == [context, after, 9, 30, 60, 0, 2, 80]


SLOTS, CAPACITY = 3, 40  # of the ring of records, of the context


def check_walk(op: Op, draft: list[int], choice: list[int], live: int, step: int = 0, status: int = 0) -> list[int]:
    """Compare `accept` in a context of five tokens with a walk along the draft; return the committed tokens."""
    rows = next(row for row in range(live) if row + 1 == live or draft[row + 1] != choice[row]) + 1
    failed = int(status or choice[rows - 1] < 0)
    committed = [] if failed else choice[:rows]
    state, record = torch.zeros(8, dtype=torch.int32), torch.full((SLOTS, RECORD), -7, dtype=torch.int32)
    state[CONTEXT], state[LIVE], state[STEP], state[STATUS], state[DRAFTED_BY] = 5, live, step, status, 2
    tokens = torch.arange(1000, 1000 + CAPACITY, dtype=torch.int32)
    expected = [*range(1000, 1006), *committed, *range(1006 + len(committed), 1000 + CAPACITY)]
    op(*(torch.tensor(ids, dtype=torch.int32) for ids in (draft, choice)), tokens, state, record)
    assert tokens.tolist() == expected
    assert state.tolist() == [5 + len(committed), 0, live, step + 1, 0, failed, 2, 0]
    header = [step, live - 1, 2, max(len(committed) - 1, 0), failed, len(committed)]
    assert record[step % SLOTS].tolist() == [*header, *committed, *[-1] * (18 - len(committed))]
    assert (record == -7).all(1).sum() == SLOTS - 1
    return committed


@both("accept")
@pytest.mark.parametrize("agreeing", [0, 6, 15])
def test_a_draft_is_committed_up_to_the_first_disagreement_and_the_bonus(op: Op, agreeing: int) -> None:
    draft = list(range(100, 116))
    choice = [*draft[1 : agreeing + 1], 9, *draft[agreeing + 2 :], 77][:16]
    assert len(check_walk(op, draft, choice, 16)) == agreeing + 1


@both("accept")
@settings(max_examples=25, deadline=None)
@given(
    draft=st.lists(st.integers(0, 2), min_size=16, max_size=16),
    choice=st.lists(st.sampled_from([0, 1, 2, -1]), min_size=16, max_size=16),
    live=st.integers(1, 16),
    agreeing=st.integers(0, 15),
    step=st.integers(0, 7),
    status=st.sampled_from([0, 0, 0, 1]),
)
def test_any_draft_is_walked_like_the_oracle(
    op: Op, draft: list[int], choice: list[int], live: int, agreeing: int, step: int, status: int
) -> None:
    """An invalid row (-1) matters only if the walk stops there; while the status is set nothing is committed."""
    check_walk(op, [*draft[:1], *choice[:agreeing], *draft[agreeing + 1 :]], choice, live, step, status)
