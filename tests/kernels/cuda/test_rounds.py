"""The small launches of a round in the interpreter: what each leaves in the state, and acceptance against a walk."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from localdflash.kernels.cuda import rounds
from localdflash.kernels.cuda.rounds import (
    CONTEXT,
    DRAFTED_BY,
    LIVE,
    RECORD,
    STATUS,
    STEP,
    accept,
    accept_reference,
)

Op = Callable[..., None]


def both(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", [getattr(rounds, name), getattr(rounds, f"{name}_reference")])


def state_of(context: int, drafter: int = 0) -> Tensor:
    return torch.tensor([context, drafter, 9, 30, 60, 0, 2, 80], dtype=torch.int32)


TOKENS = torch.arange(1000, 1100, dtype=torch.int32)


@both("begin")
def test_a_round_begins_with_the_anchor_alone(op: Op) -> None:
    context = 41
    state, draft = state_of(context, 3), torch.full((16,), -7, dtype=torch.int32)
    op(TOKENS, state, draft, 77)
    assert draft.tolist() == [1000 + context] + [77] * 15
    assert state.tolist() == [context, 3, 1, 30, 60, 0, 0, 80]


@both("next_tokens")
@pytest.mark.parametrize("context", [0, 68, 69, 92])
def test_next_tokens_are_read_to_the_end_of_the_buffer(op: Op, context: int) -> None:
    state, ids = state_of(context), torch.full((2, 16), -7, dtype=torch.int32)
    op(TOKENS, state, ids)
    found = TOKENS[context : context + 32].tolist()
    assert ids.flatten().tolist() == found + [0] * (32 - len(found))
    assert state.tolist() == [context, 0, 16, 30, context + 16, 0, 2, 80]


@both("propose")
@pytest.mark.parametrize("block", [2, 16])
def test_a_block_is_proposed(op: Op, block: int) -> None:
    choice, draft = torch.arange(500, 516, dtype=torch.int32), torch.full((16,), 5, dtype=torch.int32)
    state = state_of(40)
    op(choice, state, draft, 1, block - 1)
    assert draft.tolist() == [5, *range(501, 500 + block)] + [0] * (16 - block)
    assert (int(state[LIVE]), int(state[DRAFTED_BY])) == (block, 2)


@both("propose")
@pytest.mark.parametrize(("broken", "live"), [(99, 9), (7, 8)])
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


OPS = pytest.mark.parametrize("op", [accept, accept_reference])
SLOTS, CAPACITY = 3, 40  # of the ring of records, of the context


@dataclass
class Step:
    """The buffers of one step; `run` changes them."""

    draft: Tensor
    choice: Tensor
    state: Tensor
    tokens: Tensor
    record: Tensor

    @classmethod
    def of(cls, draft: list[int], choice: list[int], live: int, context: int = 5, step: int = 0) -> "Step":
        """Shorter lists are continued by rows that agree with each other; where not live they must not matter."""
        state = torch.zeros(8, dtype=torch.int32)
        state[CONTEXT], state[LIVE], state[STEP], state[DRAFTED_BY] = context, live, step, 2
        tokens = torch.arange(1000, 1000 + CAPACITY + 16, dtype=torch.int32)
        tokens[context] = draft[0]
        proposed, chosen = (torch.tensor(ids + [77] * (16 - len(ids)), dtype=torch.int32) for ids in (draft, choice))
        return cls(proposed, chosen, state, tokens, torch.full((SLOTS, RECORD), -7, dtype=torch.int32))

    def run(self, op: Op) -> None:
        op(self.draft, self.choice, self.tokens, self.state, self.record)

    def line(self, step: int = 0) -> list[int]:
        return self.record[step % SLOTS].tolist()

    def committed(self, context: int = 5) -> list[int]:
        return self.tokens[context + 1 : int(self.state[CONTEXT]) + 1].tolist()


@OPS
@pytest.mark.parametrize("agreeing", [0, 6, 15])
def test_a_draft_is_committed_up_to_the_first_disagreement_and_the_bonus(op: Op, agreeing: int) -> None:
    draft = list(range(100, 116))
    choice = [*draft[1 : agreeing + 1], 9, *draft[agreeing + 2 :], 77][:16]
    step = Step.of(draft, choice, live=16)
    step.run(op)
    assert step.committed() == [*draft[1 : agreeing + 1], 9 if agreeing < 15 else choice[15]]
    assert step.state.tolist() == [6 + agreeing, 0, 16, 1, 0, 0, 2, 0]
    assert step.line()[:6] == [0, 15, 2, agreeing, 0, agreeing + 1]


@OPS
def test_rows_that_are_not_live_are_neither_accepted_nor_asked(op: Op) -> None:
    step = Step.of([1, 2, 3], [2, 3, 77], live=3)
    step.choice[3:] = -1
    step.run(op)
    assert step.committed() == [2, 3, 77]
    plain = Step.of([1, 2, 3], [2, 3, 4], live=1)
    plain.run(op)
    assert plain.committed() == [2]
    assert plain.line() == [0, 0, 2, 0, 0, 1, 2, *[-1] * 17]


@OPS
@pytest.mark.parametrize(("agreeing", "bad", "fails"), [(2, 2, True), (2, 0, True), (2, 3, False), (15, 15, True)])
def test_a_row_without_choice_counts_only_if_it_decides(op: Op, agreeing: int, bad: int, fails: bool) -> None:
    draft = list(range(100, 116))
    choice = [*draft[1 : agreeing + 1], 9, *[9] * 15][:16]
    choice[bad] = -1
    step = Step.of(draft, choice, live=16)
    before = step.tokens.clone()
    step.run(op)
    assert step.state[STATUS] == int(fails)
    if fails:
        assert torch.equal(step.tokens, before)
        assert step.state[CONTEXT] == 5
        assert step.line() == [0, 15, 2, 0, 1, 0, *[-1] * 18]


@OPS
def test_nothing_is_committed_until_the_status_is_cleared(op: Op) -> None:
    step = Step.of([1, 2], [-1, 3], live=2)
    step.run(op)
    step.choice[0] = 2
    step.run(op)
    assert step.state[[CONTEXT, STEP]].tolist() == [5, 2]
    assert step.line(1)[3:7] == [0, 1, 0, -1]
    step.state[STATUS] = 0
    step.run(op)
    assert step.committed() == [2, 3]


@OPS
def test_records_go_round_the_ring_and_leave_the_others(op: Op) -> None:
    step = Step.of([1, 2], [2, 3], live=2, step=4)
    step.run(op)
    assert step.line(4) == [4, 1, 2, 1, 0, 2, 2, 3, *[-1] * 16]
    assert step.line(0) == step.line(2) == [-7] * RECORD
    untouched = [1000 + i for i in range(CAPACITY + 16)]
    assert step.tokens[8:].tolist() == untouched[8:]
    assert step.tokens[:5].tolist() == untouched[:5]


@OPS
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_draft_is_walked_like_the_oracle(op: Op, data: st.DataObject) -> None:
    live = data.draw(st.integers(1, 16))
    token = st.integers(0, 2)
    draft = data.draw(st.lists(token, min_size=16, max_size=16))
    choice = data.draw(st.lists(token, min_size=16, max_size=16))
    right = data.draw(st.integers(0, 16))
    draft[1 : right + 1] = choice[: min(right, 15)]
    rows = next(row for row in range(live) if row + 1 == live or draft[row + 1] != choice[row]) + 1
    step = Step.of(draft, choice, live)
    step.run(op)
    assert step.committed() == choice[:rows]
    assert step.line() == [0, live - 1, 2, rows - 1, 0, rows, *choice[:rows], *[-1] * (18 - rows)]
