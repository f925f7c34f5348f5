"""Deterministic split-K in one launch: the program that arrives last at a tile sums all partial tiles in index order.

Nobody waits for anybody, so that no schedule can deadlock, and the order of arrival never shows in the result. The
counters are zero before and after every kernel. A kernel touches the workspace only after `launch.wait`.

The last program sets a counter back itself, so that the next launch finds zero. After a launch that was aborted, or
that lost a ticket, the counter is not zero, and every later step would take a wrong program for the last one. So
`set_back` zeroes all counters of a pair before each sequence of launches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait

ROWS = 16
MAX_TILES = 2  # of 16 rows in one program: more would spill registers
AT_ONCE = 256  # counters that one store sets


@dataclass(frozen=True)
class SplitPlan:
    """Division of a GEMM: `tiles` of BN columns, each by SPLIT_K programs, with the launch options that go with it."""

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
        elements = max((plan.tiles * plan.SPLIT_K * MAX_TILES * ROWS * plan.BN for plan in split), default=1)
        self.partials = torch.zeros(elements, dtype=torch.float32, device=device)
        self.counters = torch.zeros(max((plan.tiles for plan in split), default=1), dtype=torch.int32, device=device)


@triton.jit
def arrive(
    accs, partials_ptr, counters_ptr, tile, split, BN: tl.constexpr, SPLIT_K: tl.constexpr, TILES: tl.constexpr = 1
):
    """Hand in a partial tile float32 [16, BN] for each of TILES tiles of rows; whether this program is the last."""
    ticket = tl.zeros((), tl.int32)
    if SPLIT_K > 1:
        here = tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :]
        for t in tl.static_range(TILES):
            tl.store(partials_ptr + ((tile * SPLIT_K + split) * TILES + t) * (16 * BN) + here, accs[t])
        tl.debug_barrier()  # all threads have stored before one of them takes the ticket
        ticket = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
    return ticket == SPLIT_K - 1


@triton.jit
def gather(
    acc, partials_ptr, counters_ptr, tile, BN: tl.constexpr, SPLIT_K: tl.constexpr, t: tl.constexpr = 0,
    TILES: tl.constexpr = 1,
):  # fmt: skip
    """The sum float32 [16, BN] of partial tiles, of tile t of the rows, for the program that `arrive` called last."""
    if SPLIT_K == 1:
        return acc
    here = t * (16 * BN) + tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :]
    partials_ptr += tile * (SPLIT_K * TILES * 16 * BN)
    total = tl.load(partials_ptr + here, cache_modifier=".cg")  # .cg: from L2, where the others' stores are
    for s in tl.static_range(1, SPLIT_K):
        total += tl.load(partials_ptr + s * (TILES * 16 * BN) + here, cache_modifier=".cg")
    tl.store(counters_ptr + tile, 0)
    return total


@Kernel
@triton.jit
def _set_back(tiles, heads, last, found, slices, many_tiles, many_heads, many_slices, AT_ONCE: tl.constexpr,
              PDL: tl.constexpr):  # fmt: skip
    """Grid (1,). slices may be None."""
    i = tl.arange(0, AT_ONCE)
    wait(PDL)
    release(PDL)
    for first in range(0, many_tiles, AT_ONCE):
        tl.store(tiles + first + i, 0, mask=first + i < many_tiles)
    tl.store(heads + i, 0, mask=i < many_heads)
    tl.store(last, 0)
    tl.store(found + i, 0, mask=i < 2)
    if slices is not None:
        tl.store(slices + i, 0, mask=i < many_slices)


def set_back(tiles: Tensor, heads: Tensor, last: Tensor, found: Tensor, slices: Tensor | None = None) -> None:
    """Zero the counters of split products (`tiles`), attention (`heads`, at most 256), head (`last`), top_k (`slices`,
    16), all int32, and what lookup has found, int64 [2].
    """
    assert len(heads) <= AT_ONCE
    _set_back[(1,)](
        tiles, heads, last, found, slices, len(tiles), len(heads), 0 if slices is None else len(slices),
        AT_ONCE=AT_ONCE, num_warps=1, **every_launch(tiles.device),
    )  # fmt: skip


def set_back_reference(tiles: Tensor, heads: Tensor, last: Tensor, found: Tensor, slices: Tensor | None = None) -> None:
    """Do what `set_back` does, in torch."""
    for counters in (tiles, heads, last, found, slices):
        if counters is not None:
            counters.zero_()
