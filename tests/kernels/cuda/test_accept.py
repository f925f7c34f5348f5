"""Acceptance on the device against a walk over the draft."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTED_BY, LIVE, RECORD, STATUS, STEP, accept, accept_reference

Op = Callable[..., None]
OPS = pytest.mark.parametrize("op", [accept, accept_reference])
SLOTS, CAPACITY = 3, 40


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
@pytest.mark.parametrize("agreeing", [0, 1, 6, 14, 15])
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
@settings(max_examples=40, deadline=None)
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
