"""The small launches of a round, in the interpreter against what their names say."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda import rounds

CONTEXT, DRAFTER, LIVE, DRAFTED_BY = 0, 1, 2, 6
Op = Callable[..., None]


def both(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", [getattr(rounds, name), getattr(rounds, f"{name}_reference")])


def state_of(context: int, drafter: int = 0) -> Tensor:
    return torch.tensor([context, drafter, 9, 30, 60, 0, 2, 80], dtype=torch.int32)


TOKENS = torch.arange(1000, 1100, dtype=torch.int32)


@both("begin")
@pytest.mark.parametrize("context", [0, 41, 99])
def test_a_round_begins_with_the_anchor_alone(op: Op, context: int) -> None:
    state, draft = state_of(context, 3), torch.full((16,), -7, dtype=torch.int32)
    op(TOKENS, state, draft, 77)
    assert draft.tolist() == [1000 + context] + [77] * 15
    assert state.tolist() == [context, 3, 1, 30, 60, 0, 0, 80]


@both("next_tokens")
@pytest.mark.parametrize("context", [0, 50, 78, 92])
def test_next_tokens_are_read_to_the_end_of_the_buffer(op: Op, context: int) -> None:
    state, ids = state_of(context), torch.full((2, 16), -7, dtype=torch.int32)
    op(TOKENS, state, ids)
    found = TOKENS[context : context + 32].tolist()
    assert ids.flatten().tolist() == found + [0] * (32 - len(found))
    assert state.tolist() == [context, 0, 16, 30, context + 16, 0, 2, 80]


@both("propose")
@pytest.mark.parametrize("block", [2, 8, 16])
def test_a_block_is_proposed(op: Op, block: int) -> None:
    choice, draft = torch.arange(500, 516, dtype=torch.int32), torch.full((16,), 5, dtype=torch.int32)
    state = state_of(40)
    op(choice, state, draft, 1, block - 1)
    assert draft.tolist() == [5, *range(501, 500 + block)] + [0] * (16 - block)
    assert (int(state[LIVE]), int(state[DRAFTED_BY])) == (block, 2)


@both("propose")
@pytest.mark.parametrize(("broken", "live"), [(99, 9), (0, 1), (7, 8), (8, 9)])
def test_the_anchors_slot_proposes_too(op: Op, broken: int, live: int) -> None:
    choice, draft = torch.arange(500, 516, dtype=torch.int32), torch.full((16,), 5, dtype=torch.int32)
    state = state_of(40)
    choice[broken:] = -1
    op(choice, state, draft, 0, 8)
    assert draft.tolist() == [5, *range(500, 499 + live)] + [0] * (16 - live)
    assert int(state[LIVE]) == live


@both("propose")
@pytest.mark.parametrize(("broken", "live", "by"), [(0, 8, 2), (1, 1, 0), (5, 5, 2), (9, 8, 2)])
def test_proposals_end_where_there_are_no_numbers(op: Op, broken: int, live: int, by: int) -> None:
    choice, draft, state = torch.arange(500, 516, dtype=torch.int32), torch.zeros(16, dtype=torch.int32), state_of(40)
    choice[broken] = -1
    op(choice, state, draft, 1, 7)
    assert draft[1:live].tolist() == list(range(501, 500 + live))
    assert not draft[live:].any()
    assert (int(state[LIVE]), int(state[DRAFTED_BY])) == (live, by)


@both("caught_up")
@pytest.mark.parametrize(("context", "seen", "after"), [(0, 0, 0), (5, 0, 5), (40, 8, 24), (40, 24, 40), (40, 25, 40)])
def test_the_drafter_sees_sixteen_more_but_no_more_than_there_are(op: Op, context: int, seen: int, after: int) -> None:
    state = state_of(context, seen)
    op(state)
    assert state.tolist() == [context, after, 9, 30, 60, 0, 2, 80]
