"""Deterministic split-K in one launch: the program that arrives last at a tile sums all partial tiles in index order.

Nobody waits for anybody, so that no schedule can deadlock, and the order of arrival never shows in the result. The
counters are zero before and after every kernel. A kernel touches the workspace only after `launch.wait`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

ROWS = 16


@dataclass(frozen=True)
class SplitPlan:
    """How a GEMM is cut: `tiles` of BN columns, each by SPLIT_K programs, with the launch options that go with it."""

    tiles: int
    BN: int
    SPLIT_K: int
    STAGES: int = 4
    num_warps: int = 4


class SplitWorkspace:
    """Partial tiles and counters for every GEMM of a device; they run one after another, so one workspace does.

    Counters hold zero except while a kernel runs.
    """

    def __init__(self, device: torch.device, plans: Iterable[SplitPlan]) -> None:
        split = [plan for plan in plans if plan.SPLIT_K > 1]
        elements = max((plan.tiles * plan.SPLIT_K * ROWS * plan.BN for plan in split), default=1)
        self.partials = torch.zeros(elements, dtype=torch.float32, device=device)
        self.counters = torch.zeros(max((plan.tiles for plan in split), default=1), dtype=torch.int32, device=device)


@triton.jit
def arrive(
    acc, partials_ptr, counters_ptr, tile, split, BN: tl.constexpr, SPLIT_K: tl.constexpr, BM: tl.constexpr = 16
):
    """Hand in the partial tile acc float32 [BM, BN]; whether this program is the tile's last."""
    ticket = tl.zeros((), tl.int32)
    if SPLIT_K > 1:
        here = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        tl.store(partials_ptr + (tile * SPLIT_K + split) * (BM * BN) + here, acc)
        tl.debug_barrier()  # all threads have stored before one of them takes the ticket
        ticket = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
    return ticket == SPLIT_K - 1


@triton.jit
def gather(acc, partials_ptr, counters_ptr, tile, BN: tl.constexpr, SPLIT_K: tl.constexpr, BM: tl.constexpr = 16):
    """The sum float32 [BM, BN] of a tile's partial tiles, for the program that `arrive` called last."""
    if SPLIT_K == 1:
        return acc
    here = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    partials_ptr += tile * (SPLIT_K * BM * BN)
    total = tl.load(partials_ptr + here, cache_modifier=".cg")  # .cg: from L2, where the others' stores are
    for s in tl.static_range(1, SPLIT_K):
        total += tl.load(partials_ptr + s * (BM * BN) + here, cache_modifier=".cg")
    tl.store(counters_ptr + tile, 0)
    return total
