"""LM head: the token of each of 16 rows by argmax over the logits, which are stored only on request.

A program computes one tile of columns and stores the best sort key of each row; the last program to finish reduces the
keys over all tiles, in a fixed order.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import accumulate, plan, plane_constants, pointers
from localdflash.kernels.cuda.norm import Norm, norm_factor, norm_factor_reference
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.sort_keys import index_of, is_nan, key_of
from localdflash.kernels.cuda.split_k import SplitPlan

ROWS = 16
REDUCE = 128  # tiles that the last program reads at once


class HeadScratch:
    """Best sort key per tile and row, and a counter of finished tiles (0 at rest); shared by a pair's LM heads."""

    def __init__(self, device: torch.device, heads: Iterable[Planes]) -> None:
        tiles = max(head_plan(planes, device).tiles for planes in heads)
        self.keys = torch.zeros(tiles, ROWS, dtype=torch.int64, device=device)
        self.counter = torch.zeros(1, dtype=torch.int32, device=device)


def head_plan(planes: Planes, device: torch.device) -> SplitPlan:
    """Return a matmul plan without split-K, because an LM head has enough tiles for a GPU."""
    return replace(plan(planes.n, planes.padded_k, device), SPLIT_K=1)


@Kernel
@triton.jit
def _head(a, sums, base, high, scales, supers, minimums, squares, before, out, logits, ids,
          part_keys, counter, K, N, V, stride, size, eps, scale, softcap, P: tl.constexpr,
          CAPPED: tl.constexpr, REDUCE: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr,
          SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr,
          STAGES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles,). logits and ids may be None."""
    tile = tl.program_id(0)
    tiles = tl.num_programs(0)
    m = tl.arange(0, 16)
    n = tile * BN + tl.arange(0, BN)
    inside = n[None, :] < V
    wait(PDL)
    value, _ = accumulate(a, sums, base, high, scales, supers, minimums, K, N, tile * BN, 0, 0,
                          R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, 1, STAGES, ASM)  # fmt: skip
    release(PDL)
    value *= norm_factor(squares, before, P, size, eps)[:, None] * scale
    if CAPPED:
        value = softcap - 2.0 * softcap / (tl.exp(value * (2.0 / softcap)) + 1.0)  # softcap * tanh(value / softcap)
    if logits is not None:
        tl.store(logits + m[:, None] * stride + n[None, :], value, mask=inside)
    keys = tl.where(inside, key_of(value, tl.broadcast_to(n[None, :], (16, BN))), -0x8000000000000000)
    tl.store(part_keys + tile * 16 + m, tl.max(keys, 1))
    tl.debug_barrier()  # all threads store before one increments the counter
    ticket = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    if ticket == tiles - 1:
        # An elementwise maximum first, so that the loads of successive iterations overlap.
        lanes = tl.full((REDUCE, 16), -0x8000000000000000, tl.int64)
        for first in tl.range(0, tiles, REDUCE, loop_unroll_factor=4):
            i = first + tl.arange(0, REDUCE)[:, None]
            lanes = tl.maximum(lanes, _winners(part_keys, i, i < tiles))
        top = tl.max(lanes, 0)
        choice = index_of(top)
        if ids is not None:
            choice = tl.load(ids + choice)
        tl.store(out + m, tl.where(is_nan(top), -1, choice))
        tl.store(counter, 0)


@triton.jit
def _winners(part_keys, i, mask):
    """Return the best keys of tiles i [REDUCE, 1], read from L2, where the other programs' stores are."""
    at = part_keys + i * 16 + tl.arange(0, 16)[None, :]
    return tl.load(at, mask=mask, other=-0x8000000000000000, cache_modifier=".cg")


def head(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    norm: Norm | None,
    out: Tensor,
    scratch: HeadScratch,
    logits: Tensor | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    ids: Tensor | None = None,
) -> None:
    """Write out[m] = argmax over v of logit(a[m] . W[v]): the lowest v on ties, -1 for a row with a NaN logit.

    A logit is the product times the norm's factor times `scale`, then softcap * tanh(logit / softcap) unless softcap
    is 0. a: float16 [16, padded_k]. sums: float32 [padded_k / 32, 16]. out: int32 [16]. Optional: `logits` float32
    [16, n] receives the logits; `ids` int32 [n], ascending, holds the token ids of W's rows if W is a part of the head.
    """
    tiling = head_plan(planes, a.device)
    squares, before = (sums, sums) if norm is None else (norm.squares, norm.before)
    parts, size, eps = (0, 1, 0.0) if norm is None else (norm.parts, norm.size, norm.eps)
    stride = 0 if logits is None else logits.stride(0)
    _head[(tiling.tiles,)](
        a, sums, *pointers(planes), squares, before, out, logits, ids,
        scratch.keys, scratch.counter, planes.padded_k, planes.padded_n, planes.n, stride, size, eps,
        scale, softcap, P=parts, CAPPED=softcap != 0, REDUCE=REDUCE, BN=tiling.BN, STAGES=tiling.STAGES,
        num_warps=tiling.num_warps, **plane_constants(planes), **every_launch(a.device),
    )  # fmt: skip


def head_reference(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    norm: Norm | None,
    out: Tensor,
    scratch: HeadScratch | None,
    logits: Tensor | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    ids: Tensor | None = None,
) -> None:
    """Do what `head` does, in torch and float32; `a` may be float32, `sums` and `scratch` are not used."""
    values = a[:, : planes.k].float() @ planes.dense.T * norm_factor_reference(norm) * scale
    if softcap:
        values = softcap * torch.tanh(values / softcap)
    broken, winner = values.isnan().any(-1), values.argmax(-1)
    out.copy_(torch.where(broken, -1, winner if ids is None else ids[winner]))
    if logits is not None:
        logits.copy_(values)
