"""Deterministic split-K in one launch: the program that arrives last at a tile sums the partial tiles in index order.

No program waits for another, so no schedule can deadlock, and the result does not depend on the order of arrival. A
kernel must access the workspace only after `launch.wait`.

Counters are zero before and after every kernel: the last program resets its counter. After an aborted launch a counter
may differ from zero, and later steps would take the wrong program for the last one. So `set_back` zeroes all counters
of a pair before each sequence of launches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait

ROWS = 16
MAX_TILES = 2  # tiles of 16 rows per program: more would spill registers
CLEAR_CHUNK = 256  # counters that `_set_back` zeroes at once


@dataclass(frozen=True)
class SplitPlan:
    """Division of a GEMM: `tiles` of BN columns, each computed by SPLIT_K programs, with the launch options."""

    tiles: int
    BN: int
    SPLIT_K: int
    STAGES: int = 4
    num_warps: int = 4


class SplitWorkspace:
    """Partial tiles and counters that all GEMMs of a pair share, since they run one after another."""

    def __init__(self, device: torch.device, plans: Iterable[SplitPlan]) -> None:
        split = [plan for plan in plans if plan.SPLIT_K > 1]
        elements = max((plan.tiles * plan.SPLIT_K * MAX_TILES * ROWS * plan.BN for plan in split), default=1)
        self.partials = torch.zeros(elements, dtype=torch.float32, device=device)
        self.counters = torch.zeros(max((plan.tiles for plan in split), default=1), dtype=torch.int32, device=device)


@triton.jit
def arrive(
    accs, partials_ptr, counters_ptr, tile, split, BN: tl.constexpr, SPLIT_K: tl.constexpr, TILES: tl.constexpr = 1
):
    """Store a partial float32 [16, BN] of each of TILES tiles of rows; return whether this program arrived last."""
    ticket = tl.zeros((), tl.int32)
    if SPLIT_K > 1:
        offsets = tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :]
        for t in tl.static_range(TILES):
            tl.store(partials_ptr + ((tile * SPLIT_K + split) * TILES + t) * (16 * BN) + offsets, accs[t])
        tl.debug_barrier()  # all threads must have stored before one takes the ticket
        ticket = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
    return ticket == SPLIT_K - 1


@triton.jit
def gather(
    acc, partials_ptr, counters_ptr, tile, BN: tl.constexpr, SPLIT_K: tl.constexpr, t: tl.constexpr = 0,
    TILES: tl.constexpr = 1,
):  # fmt: skip
    """Return the sum float32 [16, BN] of the partial tiles of row tile t; only the last program calls it."""
    if SPLIT_K == 1:
        return acc
    offsets = t * (16 * BN) + tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :]
    partials_ptr += tile * (SPLIT_K * TILES * 16 * BN)
    total = tl.load(partials_ptr + offsets, cache_modifier=".cg")  # .cg: from L2, where other programs' stores are
    for s in tl.static_range(1, SPLIT_K):
        total += tl.load(partials_ptr + s * (TILES * 16 * BN) + offsets, cache_modifier=".cg")
    tl.store(counters_ptr + tile, 0)
    return total


@Kernel
@triton.jit
def _set_back(tiles, heads, last, lookup_match, slices, tile_count, head_count, slice_count, CLEAR_CHUNK: tl.constexpr,
              PDL: tl.constexpr):  # fmt: skip
    """Grid (1,). slices may be None."""
    i = tl.arange(0, CLEAR_CHUNK)
    wait(PDL)
    release(PDL)
    for first in range(0, tile_count, CLEAR_CHUNK):
        tl.store(tiles + first + i, 0, mask=first + i < tile_count)
    tl.store(heads + i, 0, mask=i < head_count)
    tl.store(last, 0)
    tl.store(lookup_match + i, 0, mask=i < 2)
    if slices is not None:
        tl.store(slices + i, 0, mask=i < slice_count)


def set_back(tiles: Tensor, heads: Tensor, last: Tensor, lookup_match: Tensor, slices: Tensor | None = None) -> None:
    """Zero the int32 counters of split products (`tiles`), attention (`heads`, at most 256), LM head (`last`) and top_k
    (`slices`, 16), and lookup's scratch (`lookup_match`, int64 [2]).
    """
    assert len(heads) <= CLEAR_CHUNK
    _set_back[(1,)](
        tiles, heads, last, lookup_match, slices, len(tiles), len(heads), 0 if slices is None else len(slices),
        CLEAR_CHUNK=CLEAR_CHUNK, num_warps=1, **every_launch(tiles.device),
    )  # fmt: skip


def set_back_reference(
    tiles: Tensor, heads: Tensor, last: Tensor, lookup_match: Tensor, slices: Tensor | None = None
) -> None:
    """Do what `set_back` does, in torch."""
    for counters in (tiles, heads, last, lookup_match, slices):
        if counters is not None:
            counters.zero_()
