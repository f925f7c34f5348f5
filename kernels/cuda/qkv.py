"""Query, key and value heads of 16 rows: GEMM, norm per head, RoPE and the write into the cache, in one launch.

One tile of columns is one head. Row m has position start + m; its key and value are computed in float32 and rounded
once, when they are stored into the cache slot of that position.

A call may compute only some heads of a layer: in many files V has another quantization, and thus its own planes. Or a
call computes K and V of many layers: a DFlash drafter projects its context for all layers at once into a stacked cache,
with planes that stack [k heads, v heads] of each layer.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.kv_cache import CODES, SMALLEST, Cache, check_type, limit
from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import (
    accumulate,
    first_tile,
    grid_rows,
    plan,
    plane_constants,
    pointers,
    product_reference,
)
from localdflash.kernels.cuda.norm import Norm, norm_factor_reference, norm_factors, square
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.rope import Rope, rotate
from localdflash.kernels.cuda.split_k import SplitWorkspace, arrive, gather

HEAD_DIMS = (64, 128)


@dataclass(frozen=True)
class HeadRange:
    """Heads `first` .. `first + count - 1` in the order [q..., k..., v...] of a layer, layer after layer."""

    first: int
    count: int
    q_heads: int  # per layer; 0 for a stack of K and V
    kv_heads: int  # per layer

    @property
    def heads(self) -> int:
        """Return the number of Q, K and V heads of a layer."""
        return self.q_heads + 2 * self.kv_heads

    def slices(self, layer: int, begin: int, end: int) -> tuple[slice, slice]:
        """Intersect heads `begin` .. `end - 1` of a layer with this range; return slices of the range and the heads."""
        base = layer * self.heads + begin
        low = min(max(self.first, base), base + end - begin)
        high = max(min(self.first + self.count, base + end - begin), low)
        return slice(low - self.first, high - self.first), slice(low - base, high - base)


@triton.jit
def finite(x, LIMIT: tl.constexpr):
    """Return x within +-LIMIT and 0 for NaN: a cache contains only finite values."""
    return tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -LIMIT), LIMIT)  # noqa: PLR0124


@triton.jit
def to_code(x, dtype: tl.constexpr):
    """Round float32 within the range of int8 or e4m3 to the nearest code, ties to even.

    Adding and subtracting 1.5 * 2**23 steps of the code's grid rounds to that grid. The cast is then exact, also in the
    interpreter, whose rounding to e4m3 is wrong.
    """
    if dtype == tl.int8:
        return ((x + 12582912.0) - 12582912.0).to(tl.int8)
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # the power of two up to |x|
    pivot = tl.maximum(power, 0.015625) * 1572864.0  # e4m3 steps are power / 8, and 2**-9 below 2**-6
    return ((x + pivot) - pivot).to(dtype)


@triton.jit
def store_cache(x, y, codes_ptr, scale_ptr, row, D: tl.constexpr, LIMIT: tl.constexpr, LARGEST: tl.constexpr,
                SMALLEST: tl.constexpr):  # fmt: skip
    """Store the halves x, y float32 [16, D / 2] of a head in rows `row` int64 [16] of codes [.., D] and scales [..].

    LIMIT is the largest finite value, LARGEST the largest code; LARGEST = 0 for types without a scale.
    """
    HALF: tl.constexpr = D // 2
    dtype: tl.constexpr = codes_ptr.dtype.element_ty
    ptrs = codes_ptr + row[:, None] * D + tl.arange(0, HALF)[None, :]
    x, y = finite(x, LIMIT), finite(y, LIMIT)
    if LARGEST > 0:
        peak = tl.maximum(tl.max(tl.abs(x), 1), tl.max(tl.abs(y), 1))
        scale = tl.maximum(peak, SMALLEST) / LARGEST
        tl.store(scale_ptr + row, scale)
        tl.store(ptrs, to_code(x / scale[:, None], dtype))
        tl.store(ptrs + HALF, to_code(y / scale[:, None], dtype))
    else:
        tl.store(ptrs, x.to(dtype))
        tl.store(ptrs + HALF, y.to(dtype))


@Kernel
@triton.jit
def _qkv(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, squares_ptr, before_ptr,
         bias_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr, start_ptr,
         q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, partials_ptr, counters_ptr, K, N, size, eps, head_eps, first,
         slots, P: tl.constexpr, D: tl.constexpr, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BIAS: tl.constexpr,
         HEAD_NORM: tl.constexpr, LIMIT: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
         R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
         HAS_MIN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
         TILES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (heads, SPLIT_K, `grid_rows`)."""
    tile, split, rows = tl.program_id(0), tl.program_id(1), first_tile(SCALING)
    wait(PDL)
    factors = norm_factors(squares_ptr + rows * (P * 16), before_ptr + rows * (P * 16), P, size, eps, TILES)
    start = tl.load(start_ptr)
    accs = accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * D, split,
                      0, R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, D, SPLIT_K, STAGES, ASM, TILES)  # fmt: skip
    release(PDL)
    if arrive(accs, partials_ptr, counters_ptr, tile, split, D, SPLIT_K, TILES):
        HALF: tl.constexpr = D // 2
        layer = (first + tile) // (Q_HEADS + 2 * KV_HEADS)
        head = (first + tile) % (Q_HEADS + 2 * KV_HEADS)
        d = tl.arange(0, HALF)
        for t in tl.static_range(TILES):
            acc = gather(accs[t], partials_ptr, counters_ptr, tile, D, SPLIT_K, t, TILES)
            factor = factors[t][:, None]
            if BIAS:
                acc = tl.fma(acc, factor, tl.load(bias_ptr + tile * D + tl.arange(0, D))[None, :])
            else:
                acc *= factor
            x, y = tl.split(tl.permute(tl.reshape(acc, (16, 2, HALF)), (0, 2, 1)))  # first and second half of the head
            m = 16 * (rows + t) + tl.arange(0, 16)
            row = layer.to(tl.int64) * slots + start + m  # of the cache
            if head < Q_HEADS + KV_HEADS:
                if HEAD_NORM:
                    gain_ptr = k_gain_ptr + layer * D
                    if head < Q_HEADS:
                        gain_ptr = q_gain_ptr
                    rstd = tl.math.rsqrt((tl.sum(square(x), 1) + tl.sum(square(y), 1)) / D + head_eps)
                    x *= rstd[:, None] * tl.load(gain_ptr + d)[None, :]
                    y *= rstd[:, None] * tl.load(gain_ptr + HALF + d)[None, :]
                angle = (start + m)[:, None] * HALF + d[None, :]
                cos, sin = tl.load(cos_ptr + angle), tl.load(sin_ptr + angle)
                rotated = tl.fma(x, cos, -(y * sin))
                y = tl.fma(y, cos, x * sin)
                x = rotated
            if head < Q_HEADS:
                ptrs = q_ptr + (m * Q_HEADS + head)[:, None] * D + d[None, :]
                tl.store(ptrs, x.to(q_ptr.dtype.element_ty))
                tl.store(ptrs + HALF, y.to(q_ptr.dtype.element_ty))
            elif head < Q_HEADS + KV_HEADS:
                row = row * KV_HEADS + head - Q_HEADS
                store_cache(x, y, k_ptr, k_scale_ptr, row, D, LIMIT, LARGEST, SMALLEST)
            else:
                row = row * KV_HEADS + head - Q_HEADS - KV_HEADS
                store_cache(x, y, v_ptr, v_scale_ptr, row, D, LIMIT, LARGEST, SMALLEST)


def qkv(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    norm: Norm | None,
    part: HeadRange,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    rope: Rope,
    start: Tensor,
    q_out: Tensor | None,
    cache: Cache,
    workspace: SplitWorkspace,
    bias: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Project `a` to the heads of `part`; store Q in q_out, K and V in the cache.

    a float16 [16, padded_k] with its sums [padded_k / 32, 16]; norm None if a is normed already; q_gain float32 [D]
    and k_gain [D], or [layers, D] for a stack, are the gains of the per-head norm with epsilon `eps`, None if the
    model has none; start int32 [1], in device memory; q_out float16 [16, q_heads, D], None for a stack; bias
    float32 [count * D]. `rope` and cache hold the positions of all rows. ModelError for an unsupported head dimension.

    One call may compute two tiles of rows, or any number for a finished product, bit-identical to separate calls. Tile
    t starts at start + 16 t; a, sums, norm and q_out are then [T, ...].
    """
    head_dim = _head_dim(planes, part, cache)
    cut, (programs, tiles) = plan(planes.n, planes.padded_k, a.device, BN=head_dim), grid_rows(a, planes)
    squares, before, parts, size, norm_eps = (
        (sums, sums, 0, 1, 0.0) if norm is None else (norm.squares, norm.before, norm.parts, norm.size, norm.eps)
    )
    optional = (bias, q_gain, k_gain, rope.cos, rope.sin, start, q_out, cache.k, cache.v, cache.k_scale)
    tensors = (sums if tensor is None else tensor for tensor in (*optional, cache.v_scale))
    _qkv[(cut.tiles, cut.SPLIT_K, programs)](
        a, sums, *pointers(planes), squares, before, *tensors, workspace.partials, workspace.counters,
        planes.padded_k, planes.padded_n, size, norm_eps, eps, part.first, cache.k.shape[-3], P=parts, D=head_dim,
        Q_HEADS=part.q_heads, KV_HEADS=part.kv_heads, BIAS=bias is not None, HEAD_NORM=k_gain is not None,
        LIMIT=limit(cache.k.dtype), LARGEST=CODES.get(cache.k.dtype, 0.0), SMALLEST=SMALLEST, **plane_constants(planes),
        SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES, TILES=tiles, num_warps=cut.num_warps, **every_launch(a.device),
    )  # fmt: skip


def _head_dim(planes: Planes, part: HeadRange, cache: Cache) -> int:
    """Return the head dimension; ModelError if the kernel does not support it or the weights do not fit."""
    head_dim = cache.k.shape[-1]
    if head_dim not in HEAD_DIMS:
        raise ModelError(f"head dimension: {head_dim} (expected 64 or 128 on CUDA); use the llama.cpp backend")
    if planes.n != part.count * head_dim:
        raise ModelError(f"{part.count} heads of {head_dim} do not fit weights of {planes.n} rows; the file is damaged")
    check_type(cache.k.dtype, cache.k.device)
    return head_dim


def qkv_reference(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    norm: Norm | None,
    part: HeadRange,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    rope: Rope,
    start: Tensor,
    q_out: Tensor | None,
    cache: Cache,
    workspace: SplitWorkspace | None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Do what `qkv` does, in torch and float32; a, q_out and cache may be float32."""
    product = product_reference(a, planes) * norm_factor_reference(norm)
    if bias is not None:
        product = product + bias
    heads = product.view(-1, part.count, cache.k.shape[-1])  # [16 T, count, D]
    positions = (start + torch.arange(len(heads), device=start.device)).long()
    stacked = cache.k.ndim == 4
    for layer in range(cache.k.shape[0] if stacked else 1):
        layer_cache = cache.layer(layer) if stacked else cache
        gain = k_gain[layer] if stacked and k_gain is not None else k_gain
        source, target = part.slices(layer, 0, part.q_heads)
        if q_out is not None:
            rotated = rotate(_head_norm(heads[:, source], q_gain, eps), rope, positions)
            q_out.view(-1, *q_out.shape[-2:])[:, target] = rotated.to(q_out.dtype)
        source, target = part.slices(layer, part.q_heads, part.q_heads + part.kv_heads)
        layer_cache.write(positions, rotate(_head_norm(heads[:, source], gain, eps), rope, positions), None, target)
        source, target = part.slices(layer, part.q_heads + part.kv_heads, part.heads)
        layer_cache.write(positions, None, heads[:, source], target)


def _head_norm(heads: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """Return the RMSNorm over the last axis, float32; without a gain, the heads unchanged."""
    if gain is None:
        return heads
    return heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps) * gain
