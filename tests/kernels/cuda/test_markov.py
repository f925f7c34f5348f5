"""DSpark's chain in the interpreter, slot by slot, against float64 maths on the decoded weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda.head import HeadScratch
from localdflash.kernels.cuda.markov import markov_anchor, markov_anchor_reference, markov_slot, markov_slot_reference
from localdflash.kernels.cuda.planes import Planes
from tests.support.random_planes import random_planes

CPU, NAN = torch.device("cpu"), float("nan")
VOCABULARY, RANK = 300, 256
Ops = tuple[Callable[..., None], Callable[..., None]]
KERNELS, REFERENCES = (markov_anchor, markov_slot), (markov_anchor_reference, markov_slot_reference)
both = pytest.mark.parametrize("ops", [KERNELS, REFERENCES], ids=["kernels", "references"])


def table_of(rank: int, tokens: int = VOCABULARY) -> Tensor:
    return torch.randn(tokens, rank).half()


def chain(ops: Ops, planes: Planes, table: Tensor, logits: Tensor, slots: range, ids: Tensor | None = None) -> Tensor:
    """Return the tokens of the slots after anchor 7; other slots are unchanged."""
    scratch = HeadScratch(CPU, [planes])
    scratch.keys.fill_(torch.iinfo(torch.int64).max)  # would win if read before it is written
    draft, out = torch.full((16,), 7, dtype=torch.int32), torch.full((16,), -9, dtype=torch.int32)
    a, sums = torch.zeros(16, planes.padded_k, dtype=table.dtype), torch.zeros(planes.padded_k // 32, 16)
    anchor, slot_op = ops
    anchor(table, draft, a, sums)
    for slot in slots:
        slot_op(a, sums, planes, table, logits, slot, out, scratch, ids)
    assert not scratch.counter.any()
    assert not a[1:].any()
    assert not sums[:, 1:].any()
    return out


def oracle(planes: Planes, table: Tensor, logits: Tensor, slots: range, ids: Tensor | None = None) -> list[int]:
    before, actual = 7, []
    for slot in slots:
        scores = logits[slot].double() + planes.dense.double() @ table[before, : planes.k].double()
        best = scores.topk(2)
        assert best.values[0] - best.values[1] > 2e-3  # no accidental tie
        row = int(best.indices[0])
        before = row if ids is None else int(ids[row])
        actual.append(before)
    return actual


@both
def test_each_slot_depends_on_the_previous_token(ops: Ops) -> None:
    torch.manual_seed(0)
    planes, table, logits = random_planes("q4_k", VOCABULARY, RANK), table_of(RANK), torch.randn(16, VOCABULARY)
    slots = range(1, 4)
    actual, expected = chain(ops, planes, table, logits, slots), oracle(planes, table, logits, slots)
    assert actual[slots.start : slots.stop].tolist() == expected
    assert (actual[slots.stop :] == -9).all()
    assert len(set(expected)) > 2  # the bias decides
    assert expected != logits[slots.start : slots.stop].argmax(-1).tolist()


@both
def test_a_short_vocabulary_and_a_ragged_rank(ops: Ops) -> None:
    torch.manual_seed(1)
    planes, table = random_planes("q8_0", 130, 128), table_of(128)
    table[:, 96:] = 0  # a rank of 96
    ids, logits = torch.arange(3, 263, 2, dtype=torch.int32), torch.randn(16, 130)
    assert chain(ops, planes, table, logits, range(5), ids)[:5].tolist() == oracle(planes, table, logits, range(5), ids)


@both
def test_ties_take_the_first_and_nan_marks_its_slot(ops: Ops) -> None:
    torch.manual_seed(2)
    planes, table, logits = random_planes("q8_0", 200, 128), torch.zeros(200, 128).half(), torch.zeros(16, 200)
    logits[0, [150, 40, 199]] = 1.0
    logits[1, 130] = NAN
    assert chain(ops, planes, table, logits, range(3))[:3].tolist() == [40, -1, 0]
