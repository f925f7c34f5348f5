"""The GEMM of `matmul` with int8 activations on integer matrix instructions: opt-in, since it rounds activations.

`quantize_rows` gives every row of a a scale for each 128 values along k; the product with the weights' codes is exact
in int32. Four-bit planes of groups of 128 ("block", zero 0 or 8) and Q4_K ("byte4"), R = 32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.errors import UsageError
from localdflash.kernels.launch import pdl, release, wait
from localdflash.kernels.matmul import minimums, plan, pointers, switches
from localdflash.kernels.norm import Norm, norm_factor, norm_factor_reference
from localdflash.kernels.planes import Planes
from localdflash.kernels.split_k import SplitWorkspace, arrive, gather
from localdflash.kernels.unpack import half

GROUP = 128  # values of a row under one scale

# $4, $5: four words of nibbles -> $0..$3: their nibbles 0..3 as bytes.
NIBBLES_ASM = tl.constexpr("""{
    .reg .b32 low, high, next;
    prmt.b32 low, $4, $5, 0x6420;
    prmt.b32 high, $4, $5, 0x7531;
    and.b32 $0, low, 0x0f0f0f0f;
    shr.b32 next, low, 4;
    and.b32 $1, next, 0x0f0f0f0f;
    and.b32 $2, high, 0x0f0f0f0f;
    shr.b32 next, high, 4;
    and.b32 $3, next, 0x0f0f0f0f;
}""")

# The same as 16 * (nibble - 8): a nibble with its top bit flipped, in the upper half of a byte.
SIGNED_NIBBLES_ASM = tl.constexpr("""{
    .reg .b32 low, high, next, flip;
    mov.b32 flip, 0x88888888;
    prmt.b32 low, $4, $5, 0x6420;
    prmt.b32 high, $4, $5, 0x7531;
    shl.b32 next, low, 4;
    lop3.b32 $0, next, flip, 0xf0f0f0f0, 0x28;
    lop3.b32 $1, low, flip, 0xf0f0f0f0, 0x28;
    shl.b32 next, high, 4;
    lop3.b32 $2, next, flip, 0xf0f0f0f0, 0x28;
    lop3.b32 $3, high, flip, 0xf0f0f0f0, 0x28;
}""")


@triton.jit
def _nibbles(words, ZERO: tl.constexpr, ASM: tl.constexpr):
    """Words int16 [R, BN] to four int8 tiles: the codes, or 16 * (code - 8) for a zero of 8."""
    if ASM:
        TEXT: tl.constexpr = SIGNED_NIBBLES_ASM if ZERO == 8 else NIBBLES_ASM
        return tl.inline_asm_elementwise(
            TEXT, "=&r,=&r,=&r,=&r,r,r", [words], dtype=(tl.int8, tl.int8, tl.int8, tl.int8), is_pure=True, pack=4
        )
    else:  # noqa: RET505 (the compiler must not see both)
        return _nibble(words, 0, ZERO), _nibble(words, 1, ZERO), _nibble(words, 2, ZERO), _nibble(words, 3, ZERO)


@triton.jit
def _nibble(words, i: tl.constexpr, ZERO: tl.constexpr):
    code = (words >> (4 * i)) & 0xF
    return ((code - 8) * 16 if ZERO == 8 else code).to(tl.int8)


@triton.jit
def _byte(words, i: tl.constexpr):
    return (words >> (8 * i)) & 0xFF


@triton.jit
def _accumulate(
    codes_ptr, scales_ptr, sums_ptr, base_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split,
    SCALING: tl.constexpr, ZERO: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr, ASM: tl.constexpr, BM: tl.constexpr = 16, R: tl.constexpr = 32,
):  # fmt: skip
    """As `matmul.accumulate`, from codes int8 [BM, K], scales float32 [K / 128, BM] and sums float32 [K / 32, BM]."""
    LEAST: tl.constexpr = 2 if SCALING == "byte4" else 1
    blocks = K // (4 * R)
    per_split = tl.cdiv(blocks // LEAST, SPLIT_K) * LEAST
    first = tl.minimum(split * per_split, blocks)
    last = tl.minimum(first + per_split, blocks)
    base_ptr += column
    scale_ptr += column
    supers_ptr += column
    minimum_ptr += column
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    r = tl.arange(0, R)
    acc = tl.zeros((BM, BN), tl.float32)
    for block in tl.range(first, last, num_stages=STAGES):
        words = tl.load(base_ptr + (block * R + r)[:, None] * N + n[None, :], eviction_policy="evict_first")
        a = codes_ptr + m[:, None] * K + (block * (4 * R) + r)[None, :]
        w0, w1, w2, w3 = _nibbles(words, ZERO, ASM)
        scale = tl.load(scale_ptr + block * N + n)
        row_scale = tl.load(scales_ptr + block * BM + m)
        if SCALING == "byte4":
            product = tl.dot(tl.load(a), w0, out_dtype=tl.int32) * _byte(scale, 0)[None, :]
            product += tl.dot(tl.load(a + R), w1, out_dtype=tl.int32) * _byte(scale, 1)[None, :]
            product += tl.dot(tl.load(a + 2 * R), w2, out_dtype=tl.int32) * _byte(scale, 2)[None, :]
            product += tl.dot(tl.load(a + 3 * R), w3, out_dtype=tl.int32) * _byte(scale, 3)[None, :]
            scale = half(tl.load(supers_ptr + block // LEAST * N + n), 0)
        else:
            product = tl.dot(tl.load(a), w0, out_dtype=tl.int32)
            product = tl.dot(tl.load(a + R), w1, product, out_dtype=tl.int32)
            product = tl.dot(tl.load(a + 2 * R), w2, product, out_dtype=tl.int32)
            product = tl.dot(tl.load(a + 3 * R), w3, product, out_dtype=tl.int32)
        acc += product.to(tl.float32) * row_scale[:, None] * scale[None, :]
        if SCALING == "block" and HAS_MIN:
            total = tl.zeros((BM,), tl.float32)
            for g in tl.static_range(4):
                total += tl.load(sums_ptr + (block * 4 + g) * BM + m)
            acc -= total[:, None] * tl.load(minimum_ptr + block * N + n)[None, :]
    if ZERO == 8:
        acc *= 0.0625
    if SCALING == "byte4" and HAS_MIN:
        acc -= minimums(sums_ptr, minimum_ptr, supers_ptr, N, first, last, BM, BN, ASM)
    return acc


@triton.jit
def _w4a8_matmul(
    codes_ptr, scales_ptr, sums_ptr, base_ptr, scale_ptr, supers_ptr, minimum_ptr, squares_ptr, before_ptr, out_ptr,
    partials_ptr, counters_ptr, K, N, columns, size, eps, P: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr,
    HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    acc = _accumulate(codes_ptr, scales_ptr, sums_ptr, base_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * BN,
                      split, SCALING, ZERO, HAS_MIN, BN, SPLIT_K, STAGES, ASM)  # fmt: skip
    release(PDL)
    if arrive(acc, partials_ptr, counters_ptr, tile, split, BN, SPLIT_K):
        acc = gather(acc, partials_ptr, counters_ptr, tile, BN, SPLIT_K)
        acc *= norm_factor(squares_ptr, before_ptr, P, size, eps)[:, None]
        n = tile * BN + tl.arange(0, BN)
        out = out_ptr + tl.arange(0, 16)[:, None] * columns + n[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=n[None, :] < columns)


@triton.jit
def _quantize_rows(a_ptr, codes_ptr, scales_ptr, sums_ptr, K, PDL: tl.constexpr, BM: tl.constexpr = 16):
    block = tl.program_id(0)
    m = tl.arange(0, BM)
    wait(PDL)
    at = m[:, None] * K + (block * 128 + tl.arange(0, 128))[None, :]
    a = tl.load(a_ptr + at).to(tl.float32)
    scale = tl.math.div_rn(tl.maximum(tl.max(tl.abs(a), 1), 1e-20), 127.0)
    codes = tl.floor(tl.math.div_rn(a, tl.broadcast_to(scale[:, None], (BM, 128))) + 0.5)
    release(PDL)
    tl.store(codes_ptr + at, codes.to(tl.int8))
    tl.store(scales_ptr + block * BM + m, scale)
    sums = tl.sum(tl.reshape(codes, (BM, 4, 32)), 2) * scale[:, None]
    tl.store(sums_ptr + (block * 4 + tl.arange(0, 4))[None, :] * BM + m[:, None], sums)


def quantize_rows(a: Tensor, codes: Tensor, scales: Tensor, sums: Tensor) -> None:
    """Round a float16 [16, K], K a multiple of 128, to codes int8 [16, K] times scales float32 [K / 128, 16].

    sums float32 [K / 32, 16] are those of the rounded values.
    """
    _quantize_rows[(a.shape[1] // GROUP,)](a, codes, scales, sums, a.shape[1], num_warps=4, **pdl(a.device))


def quantize_rows_reference(a: Tensor, codes: Tensor, scales: Tensor, sums: Tensor) -> None:
    """The same in torch; a may be float32."""
    blocks = a.float().unflatten(1, (-1, GROUP))  # [16, K / 128, 128]
    scale = blocks.abs().amax(-1).clamp_min(1e-20) / 127
    rounded = torch.floor(blocks / scale.unsqueeze(-1) + 0.5)
    codes.copy_(rounded.flatten(1))
    scales.copy_(scale.T)
    sums.copy_((rounded.unflatten(2, (4, 32)).sum(-1) * scale.unsqueeze(-1)).flatten(1).T)


def check(planes: Planes) -> None:
    """UsageError unless these planes can be multiplied with int8 activations."""
    known = planes.rows == 32 and planes.high is None and planes.code == "int" and planes.experts == 1
    if not known or (planes.scaling, planes.zero) not in {("block", 0), ("block", 8), ("byte4", 0)}:
        raise UsageError("int8 activations go with int4 (groups of 128) and Q4_K weights only; leave them at float16")


def w4a8_matmul(
    codes: Tensor, scales: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: SplitWorkspace,
    norm: Norm | None = None,
) -> None:  # fmt: skip
    """Store (a @ W^T) * the norm's factor in out, float32 or float16 [16, n], for a as `quantize_rows` left it."""
    cut = plan(planes.n, planes.padded_k, codes.device)
    base, _, scale, supers, minimum = pointers(planes)
    squares, before, parts, size, eps = (
        (sums, sums, 0, 1, 0.0) if norm is None else (norm.squares, norm.before, norm.parts, norm.size, norm.eps)
    )
    _w4a8_matmul[(cut.tiles, cut.SPLIT_K)](
        codes, scales, sums, base, scale, supers, minimum, squares, before, out, workspace.partials,
        workspace.counters, planes.padded_k, planes.padded_n, planes.n, size, eps, P=parts, **_switches(planes),
        BN=cut.BN, SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES, num_warps=cut.num_warps, **pdl(codes.device),
    )  # fmt: skip


def _switches(planes: Planes) -> dict[str, Any]:
    return {name: value for name, value in switches(planes).items() if name in {"SCALING", "ZERO", "HAS_MIN", "ASM"}}


def w4a8_matmul_reference(
    codes: Tensor, scales: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: SplitWorkspace,
    norm: Norm | None = None,
) -> None:  # fmt: skip
    """The same from the dense weights, in float32."""
    a = (codes.float().unflatten(1, (-1, GROUP)) * scales.T.unsqueeze(-1)).flatten(1)
    out.copy_(a[:, : planes.k] @ planes.dense.T * norm_factor_reference(norm))
