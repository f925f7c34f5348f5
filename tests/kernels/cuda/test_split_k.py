"""Deterministic split-K: who is last, what is summed, and what is left behind."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import interpreter_builder

from localdflash.kernels.cuda.split_k import MOST_TILES, SplitPlan, SplitWorkspace, arrive, gather

CPU = torch.device("cpu")


@contextlib.contextmanager
def programs_in_reverse() -> Iterator[None]:
    """The interpreter runs programs one after another; from the last to the first here."""
    forward = interpreter_builder.set_grid_idx

    def backward(x: int, y: int, z: int) -> None:
        nx, ny, nz = interpreter_builder.grid_dim
        forward(nx - 1 - x, ny - 1 - y, nz - 1 - z)

    interpreter_builder.set_grid_idx = backward
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = forward


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


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_the_last_to_arrive_sums_in_index_order(splits):
    parts = torch.randn(3, splits, 16, 32) * 10.0 ** torch.arange(splits).view(1, -1, 1, 1)
    want = parts[:, 0].clone()
    for s in range(1, splits):
        want += parts[:, s]
    workspace = SplitWorkspace(CPU, [SplitPlan(3, 32, splits)])
    workspace.partials.fill_(float("nan"))
    first, last = run(parts, workspace)
    again, _ = run(parts, workspace)
    with programs_in_reverse():
        reverse, last_in_reverse = run(parts, workspace)
    assert torch.equal(first, want)
    assert torch.equal(again, want)
    assert torch.equal(reverse, want)
    assert last == [[0] * (splits - 1) + [1]] * 3
    assert last_in_reverse == [[1] + [0] * (splits - 1)] * 3
    assert not workspace.counters.any()


def test_a_workspace_serves_the_largest_plan():
    workspace = SplitWorkspace(CPU, [SplitPlan(3, 128, 2), SplitPlan(9, 64, 1), SplitPlan(2, 128, 8)])
    assert workspace.partials.numel() == MOST_TILES * 2 * 8 * 16 * 128
    assert workspace.counters.numel() == 3
