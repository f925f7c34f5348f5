"""Deterministic split-K: the last program, the sum, and the counters."""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.kernels.cuda import matmul
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace, arrive, gather, set_back, set_back_reference
from tests.support.interpreter import reversed_programs

CPU = torch.device("cpu")


@triton.jit
def _sum(parts, out, last, partials, counters, BN: tl.constexpr, SPLIT_K: tl.constexpr):
    tile, split = tl.program_id(0), tl.program_id(1)
    here = tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :]
    acc = tl.load(parts + (tile * SPLIT_K + split) * (16 * BN) + here)
    if arrive((acc,), partials, counters, tile, split, BN, SPLIT_K):
        tl.atomic_add(last + tile * SPLIT_K + split, 1)
        tl.store(out + tile * (16 * BN) + here, gather(acc, partials, counters, tile, BN, SPLIT_K))


def run(parts, workspace):
    tiles, splits = parts.shape[:2]
    out, last = torch.zeros(tiles, 16, 32), torch.zeros(tiles, splits, dtype=torch.int32)
    _sum[(tiles, splits)](parts, out, last, workspace.partials, workspace.counters, BN=32, SPLIT_K=splits)
    return out, last.tolist()


def test_the_last_to_arrive_sums_in_index_order():
    splits = 5
    parts = torch.randn(3, splits, 16, 32) * 10.0 ** torch.arange(splits).view(1, -1, 1, 1)
    expected = parts[:, 0].clone()
    for s in range(1, splits):
        expected += parts[:, s]
    workspace = SplitWorkspace(CPU, [SplitPlan(3, 32, splits)])
    workspace.partials.fill_(float("nan"))
    for _ in range(2):
        actual, last = run(parts, workspace)
        assert torch.equal(actual, expected)
        assert last == [[0] * (splits - 1) + [1]] * 3
        assert not workspace.counters.any()


def test_the_first_program_may_arrive_last():
    parts, workspace = torch.randn(3, 5, 16, 32), SplitWorkspace(CPU, [SplitPlan(3, 32, 5)])
    expected, _ = run(parts, workspace)
    with reversed_programs():
        actual, last = run(parts, workspace)
    assert torch.equal(actual, expected)
    assert last == [[1, 0, 0, 0, 0]] * 3


@pytest.mark.parametrize("op", [set_back, set_back_reference])
@pytest.mark.parametrize(("slices", "tiles"), [(True, 700), (False, 255)])
def test_set_back_zeroes_only_the_counters(op: Callable[..., None], slices: bool, tiles: int) -> None:
    sizes = [tiles, 32, 1, 2, 16]
    rooms = [torch.full((size + 2,), 7, dtype=torch.int64 if size == 2 else torch.int32) for size in sizes]
    counters = [room[1:-1] for room in rooms]
    op(*counters[:4], counters[4] if slices else None)
    for room in rooms[: 5 if slices else 4]:
        assert room.tolist() == [7, *[0] * (len(room) - 2), 7]
    assert slices or bool((rooms[4] == 7).all())


def test_lost_ticket_is_reset():
    workspace = SplitWorkspace(CPU, [SplitPlan(3, 32, 4)])
    heads, last, lookup_match = (torch.zeros(n, dtype=torch.int64 if n == 2 else torch.int32) for n in (8, 1, 2))

    def is_right(step):
        parts = torch.arange(12.0).view(3, 4, 1, 1).expand(3, 4, 16, 32) + step
        return torch.equal(run(parts.contiguous(), workspace)[0], parts.sum(1))

    assert is_right(1)
    workspace.counters[1] -= 1
    assert not is_right(2)
    assert not is_right(3), "every later step would be wrong too"
    set_back(workspace.counters, heads, last, lookup_match)
    assert is_right(4)


def test_the_plan_gives_every_multiprocessor_work():
    for n, k in ((2560, 9728), (6144, 2560), (19456, 2560), (151936, 2560), (128, 256)):
        cut = matmul.plan(n, k, CPU)
        assert cut.tiles * cut.BN >= n
        assert cut.SPLIT_K == 1 or k // 128 >= 4 * cut.SPLIT_K
        assert cut.tiles * cut.SPLIT_K >= 128 or k // 128 < 8
    assert matmul.plan(151936, 2560, CPU).SPLIT_K == 1
    assert matmul.plan(6144, 2560, CPU, BN=64).tiles == 96


@settings(deadline=None)
@given(n=st.integers(1, 200).map(lambda tiles: 128 * tiles), k=st.integers(1, 100).map(lambda supers: 256 * supers))
def test_every_program_of_a_split_has_work(n: int, k: int) -> None:
    split, supers = matmul.plan(n, k, CPU).SPLIT_K, k // 256
    assert (split - 1) * -(-supers // split) < supers
