"""DSpark's Markov head: the logits of a draft position (slot) get a low-rank bias that depends on the previous token.

Each slot is one launch, because programs that wait for each other inside a launch would all have to be resident, which
a graph does not guarantee. The program that finishes last knows the slot's token and copies that token's row of the
table to a[0], the input of the next slot. Source: arXiv 2607.05147.
"""

import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.head import REDUCE, HeadScratch, head_plan
from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import accumulate, plane_constants, pointers
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.sort_keys import index_of, is_nan, key_of

GROUP = 32  # columns under one entry of `sums`


@triton.jit
def _copy_row(table, token, a, sums, K, WIDTH: tl.constexpr):
    """Copy row `token` of table [V, K] to row 0 of a [16, K], and its sums over groups of 32 to column 0 of sums."""
    k = tl.arange(0, WIDTH)
    row = tl.load(table + token.to(tl.int64) * K + k, mask=k < K, other=0.0)
    tl.store(a + k, row, mask=k < K)
    group = tl.arange(0, WIDTH // 32)
    totals = tl.sum(tl.reshape(row.to(tl.float32), (WIDTH // 32, 32)), 1)
    tl.store(sums + group * 16, totals, mask=group * 32 < K)


@Kernel
@triton.jit
def _markov_anchor(table, draft, a, sums, K, WIDTH: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    release(PDL)
    _copy_row(table, tl.load(draft), a, sums, K, WIDTH)


def markov_anchor(table: Tensor, draft: Tensor, a: Tensor, sums: Tensor) -> None:
    """Prepare the first slot's bias: a[0] = table[draft[0]], with its sums.

    table: float16 [V, K], zero past its rank. draft: int32 [16]. a: float16 [16, K], other rows zero. sums: float32
    [K / 32, 16].
    """
    width = table.shape[1]
    _markov_anchor[(1,)](
        table, draft, a, sums, width, WIDTH=triton.next_power_of_2(width), num_warps=1, **every_launch(a.device)
    )


def markov_anchor_reference(table: Tensor, draft: Tensor, a: Tensor, sums: Tensor) -> None:
    """Do what `markov_anchor` does, in torch; table and a may be float32."""
    _copy_row_reference(table, int(draft[0]), a, sums)


def _copy_row_reference(table: Tensor, token: int, a: Tensor, sums: Tensor) -> None:
    a[0] = table[token]
    sums[:, 0] = a[0].float().view(-1, GROUP).sum(-1)


@Kernel
@triton.jit(do_not_specialize=["slot"])  # every slot runs the same code
def _markov_slot(a, sums, base, high, scales, supers, minimums, table, logits, ids, out, part_keys, counter, K, N, V,
                 stride, slot, REDUCE: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr,
                 SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, HAS_MIN: tl.constexpr,
                 BN: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles of V,). ids may be None."""
    tile = tl.program_id(0)
    tiles = tl.num_programs(0)
    n = tile * BN + tl.arange(0, BN)
    wait(PDL)
    acc, _ = accumulate(a, sums, base, high, scales, supers, minimums, K, N, tile * BN, 0, 0,
                        R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, 1, STAGES, ASM)  # fmt: skip
    release(PDL)
    bias = tl.sum(tl.where(tl.arange(0, 16)[:, None] == 0, acc, 0.0), 0)
    value = tl.load(logits + slot * stride + n, mask=n < V, other=0.0) + bias
    keys = tl.where(n < V, key_of(value, n), -0x8000000000000000)
    tl.store(part_keys + tile, tl.max(keys, 0))
    tl.debug_barrier()  # all threads store before one increments the counter
    ticket = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    if ticket == tiles - 1:  # all others have read `a`
        lanes = tl.full((REDUCE,), -0x8000000000000000, tl.int64)
        for first in tl.range(0, tiles, REDUCE, loop_unroll_factor=4):
            i = first + tl.arange(0, REDUCE)
            part = tl.load(part_keys + i, mask=i < tiles, other=-0x8000000000000000, cache_modifier=".cg")
            lanes = tl.maximum(lanes, part)
        top = tl.max(lanes, 0)
        token = index_of(top)
        if ids is not None:
            token = tl.load(ids + token)
        tl.store(out + slot, tl.where(is_nan(top), -1, token))
        _copy_row(table, token, a, sums, K, WIDTH)
        tl.store(counter, 0)


def markov_slot(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    table: Tensor,
    logits: Tensor,
    slot: int,
    out: Tensor,
    scratch: HeadScratch,
    ids: Tensor | None = None,
) -> None:
    """Write out[slot] = argmax over v of logits[slot, v] + a[0] . W[v], and copy the token's row of the table to a[0].

    The lowest v wins a tie; a NaN logit gives -1. a, sums and table: see `markov_anchor`; K is planes.padded_k. planes:
    [n, rank]. logits: float32 [16, n]. out: int32 [16]. `ids` int32 [n], ascending, holds the token ids of W's rows if
    the drafter proposes only n of the V tokens.
    """
    tiling = head_plan(planes, a.device)
    _markov_slot[(tiling.tiles,)](
        a, sums, *pointers(planes), table, logits, ids, out, scratch.keys, scratch.counter,
        planes.padded_k, planes.padded_n, planes.n, logits.stride(0), slot, REDUCE=REDUCE,
        WIDTH=triton.next_power_of_2(planes.padded_k), BN=tiling.BN, STAGES=tiling.STAGES, num_warps=tiling.num_warps,
        **plane_constants(planes), **every_launch(a.device),
    )  # fmt: skip


def markov_slot_reference(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    table: Tensor,
    logits: Tensor,
    slot: int,
    out: Tensor,
    scratch: HeadScratch | None,
    ids: Tensor | None = None,
) -> None:
    """Do what `markov_slot` does, in torch and float32; a and table may be float32, `scratch` is not used."""
    values = logits[slot] + a[0, : planes.k].float() @ planes.dense.T
    row = int(values.argmax())
    token = row if ids is None else int(ids[row])
    out[slot] = -1 if bool(values.isnan().any()) else token
    _copy_row_reference(table, token, a, sums)
