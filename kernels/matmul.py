"""The 16-row GEMM on quantized weights: out[16, n] = a[16, k] @ W[n, k]^T, W in planes, with the parts others reuse.

Plain decoding and verification run the same tiles in the same order whatever the number of live rows, so that the
bits of a row never depend on the other rows. Rows that are not live may hold anything, NaN too.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.errors import UsageError
from localdflash.kernels.launch import ASM, pdl, release, wait
from localdflash.kernels.norm import Norm, norm_factor, norm_factor_reference
from localdflash.kernels.planes import SUPER, Planes
from localdflash.kernels.split_k import Plan, Workspace, arrive, gather
from localdflash.kernels.unpack import unpack


@triton.jit
def accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert,
               R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr,
               CODE: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr,
               STAGES: tl.constexpr, ASM: tl.constexpr, BM: tl.constexpr = 16):
    """This program's part of a @ W^T, float32 [BM, BN].

    a float16 [BM, K], sums float32 [K / 32, BM] (read only with minimums), the planes' tensors (`pointers`);
    K and N padded; the columns start at `column`; `split` of SPLIT_K ranges of K; `expert` of a stack, else 0.
    """
    BK: tl.constexpr = 4 * R
    UNIT: tl.constexpr = 256 // BK if SCALING == "byte4" else 1
    blocks = K // BK
    per_split = tl.cdiv(blocks // UNIT, SPLIT_K) * UNIT
    first = split * per_split
    last = tl.minimum(first + per_split, blocks)
    m = tl.arange(0, BM)
    n = column + tl.arange(0, BN)
    r = tl.arange(0, R)
    offset = expert * blocks
    acc = tl.zeros((BM, BN), tl.float32)
    for block in tl.range(first, last, num_stages=STAGES):
        row = (offset + block).to(tl.int64)
        here = (row * R + r)[:, None] * N + n[None, :]
        words = tl.load(base_ptr + here, eviction_policy="evict_first")
        high = words
        if HIGH_BITS != 0:
            high = tl.load(high_ptr + here, eviction_policy="evict_first")
        w0, w1, w2, w3 = unpack(words, high, HIGH_BITS, ZERO, CODE, ASM)
        a = a_ptr + m[:, None] * K + (block * BK + r)[None, :]
        if SCALING == "block":
            part = tl.dot(tl.load(a), w0)
            part = tl.dot(tl.load(a + R), w1, part)
            part = tl.dot(tl.load(a + 2 * R), w2, part)
            part = tl.dot(tl.load(a + 3 * R), w3, part)
            acc += part * tl.load(scale_ptr + row * N + n)[None, :]
            if HAS_MIN:
                total = tl.zeros((BM,), tl.float32)
                for g in tl.static_range(BK // 32):
                    total += tl.load(sums_ptr + (block * (BK // 32) + g) * BM + m)
                acc -= total[:, None] * tl.load(minimum_ptr + row * N + n)[None, :]
        elif SCALING == "half4":
            pair = tl.load(scale_ptr + 2 * row * N + n)
            acc += tl.dot(tl.load(a), w0) * _half(pair, 0)[None, :]
            acc += tl.dot(tl.load(a + R), w1) * _half(pair, 1)[None, :]
            pair = tl.load(scale_ptr + (2 * row + 1) * N + n)
            acc += tl.dot(tl.load(a + 2 * R), w2) * _half(pair, 0)[None, :]
            acc += tl.dot(tl.load(a + 3 * R), w3) * _half(pair, 1)[None, :]
        else:
            scales = tl.load(scale_ptr + row * N + n)
            supers = tl.load(supers_ptr + row // UNIT * N + n)
            part = tl.dot(tl.load(a), w0) * _byte(scales, 0, R == 16)[None, :]
            part += tl.dot(tl.load(a + R), w1) * _byte(scales, 1, R == 16)[None, :]
            part += tl.dot(tl.load(a + 2 * R), w2) * _byte(scales, 2, R == 16)[None, :]
            part += tl.dot(tl.load(a + 3 * R), w3) * _byte(scales, 3, R == 16)[None, :]
            acc += part * _half(supers, 0)[None, :]
            if HAS_MIN:
                minimums = tl.load(minimum_ptr + row * N + n)
                part = tl.zeros((BM, BN), tl.float32)
                for g in tl.static_range(4):
                    total = tl.load(sums_ptr + (block * 4 + g) * BM + m)
                    part += total[:, None] * _byte(minimums, g, False)[None, :]
                acc -= part * _half(supers, 1)[None, :]
    if CODE == "e4m3":
        acc *= 256.0
    if CODE == "e2m1":
        acc *= 16384.0
    return acc


@triton.jit
def _half(words, i: tl.constexpr):
    return (words >> (16 * i)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _byte(words, i: tl.constexpr, SIGNED: tl.constexpr):
    if SIGNED:
        return ((words << (24 - 8 * i)) >> 24).to(tl.float32)
    return ((words >> (8 * i)) & 255).to(tl.float32)


def pointers(planes: Planes) -> tuple[Tensor, ...]:
    """The planes' tensors in the order of `accumulate`; an absent one is given as `base`, and not read."""
    tensors = (planes.base, planes.high, planes.scale, planes.supers, planes.minimum)
    return tuple(planes.base if tensor is None else tensor for tensor in tensors)


def switches(planes: Planes) -> dict[str, Any]:
    """The planes' compile-time arguments of `accumulate`, and ASM."""
    return {
        "R": planes.rows,
        "HIGH_BITS": planes.high_bits,
        "SCALING": planes.scaling,
        "ZERO": planes.zero,
        "CODE": planes.code,
        "HAS_MIN": planes.minimum is not None,
        "ASM": ASM,
    }


@triton.jit
def _matmul(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, squares_ptr, before_ptr,
            out_ptr, partials_ptr, counters_ptr, K, N, columns, size, eps, P: tl.constexpr,
            R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
            HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
            ASM: tl.constexpr, PDL: tl.constexpr):
    tile, split = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    acc = accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * BN, split,
                     0, R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, SPLIT_K, STAGES, ASM)
    release(PDL)
    if arrive(acc, partials_ptr, counters_ptr, tile, split, BN, SPLIT_K):
        acc = gather(acc, partials_ptr, counters_ptr, tile, BN, SPLIT_K)
        acc *= norm_factor(squares_ptr, before_ptr, P, size, eps)[:, None]
        n = tile * BN + tl.arange(0, BN)
        out = out_ptr + tl.arange(0, 16)[:, None] * columns + n[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=n[None, :] < columns)


@functools.cache
def plan(n: int, k: int, device: torch.device) -> Plan:
    """How to cut a GEMM of weights [n, k]; never depends on the rows."""
    tiles = triton.cdiv(n, 128)
    return Plan(tiles, 128, max(1, min(8, 128 // tiles, k // 1024)))


def matmul(a: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: Workspace, norm: Norm | None = None) -> None:
    """out = (a @ W^T) * factor of the norm.

    a float16 [16, padded_k], sums float32 [padded_k / 32, 16], out float32 or float16 [16, n].
    """
    cut = plan(planes.n, planes.padded_k, a.device)
    squares, before, parts, size, eps = (sums, sums, 0, 1, 0.0) if norm is None else (
        norm.squares, norm.before, norm.parts, norm.size, norm.eps)
    _matmul[(cut.tiles, cut.SPLIT_K)](
        a, sums, *pointers(planes), squares, before, out, workspace.partials, workspace.counters,
        planes.padded_k, planes.padded_n, out.shape[1], size, eps, P=parts, **switches(planes),
        BN=cut.BN, SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES, num_warps=cut.num_warps, **pdl(a.device),
    )


def matmul_reference(
    a: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: Workspace, norm: Norm | None = None
) -> None:
    """The same in float32, from the dense weights; a may be float32."""
    out.copy_(a[:, : planes.k].float() @ planes.dense.T * norm_factor_reference(norm))
