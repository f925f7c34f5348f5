"""Planes -> float16 weights, for prefill: many rows at once are best served by a plain matrix product."""

import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels import planes as definition
from localdflash.kernels.launch import pdl, release, wait
from localdflash.kernels.matmul import pointers, switches
from localdflash.kernels.planes import COLUMNS, SUPER, Planes
from localdflash.kernels.unpack import unit, unpack


@triton.jit
def _half(words, i: tl.constexpr):
    return (words >> (16 * i)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _byte(words, i: tl.constexpr, SIGNED: tl.constexpr):
    return ((words << (24 - 8 * i)) >> 24).to(tl.float32) if SIGNED else ((words >> (8 * i)) & 255).to(tl.float32)


@triton.jit
def _scaled(
    value,
    i: tl.constexpr,
    scale_ptr,
    supers_ptr,
    minimum_ptr,
    block,
    N,
    n,
    R: tl.constexpr,
    SCALING: tl.constexpr,
    HAS_MIN: tl.constexpr,
    SUPER: tl.constexpr,
):
    """The weights of field i of a block, float32 [R, BN], from their values."""
    at = block * N + n
    if SCALING == "half4":
        weights = value * _half(tl.load(scale_ptr + (2 * block + i // 2) * N + n), i % 2)[None, :]
    elif SCALING == "block":
        weights = value * tl.load(scale_ptr + at)[None, :]
        if HAS_MIN:
            weights -= tl.load(minimum_ptr + at)[None, :]
    else:
        supers = tl.load(supers_ptr + block * (4 * R) // SUPER * N + n)
        weights = value * (_half(supers, 0) * _byte(tl.load(scale_ptr + at), i, R == 16))[None, :]
        if HAS_MIN:
            weights -= (_half(supers, 1) * _byte(tl.load(minimum_ptr + at), i, False))[None, :]
    return weights


@triton.jit
def _dequantize(
    base_ptr,
    high_ptr,
    scale_ptr,
    supers_ptr,
    minimum_ptr,
    out_ptr,
    N,
    R: tl.constexpr,
    HIGH_BITS: tl.constexpr,
    SCALING: tl.constexpr,
    ZERO: tl.constexpr,
    CODE: tl.constexpr,
    HAS_MIN: tl.constexpr,
    BN: tl.constexpr,
    SUPER: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (blocks, N / BN)."""
    block = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    r = tl.arange(0, R)
    here = (block * R + r)[:, None] * N + n[None, :]
    words = tl.load(base_ptr + here)
    high = words
    if HIGH_BITS != 0:
        high = tl.load(high_ptr + here)
    tiles = unpack(words, high, HIGH_BITS, ZERO, CODE, ASM)
    wait(PDL)
    for i in tl.static_range(4):
        value = tiles[i].to(tl.float32) * unit(CODE)
        weights = _scaled(value, i, scale_ptr, supers_ptr, minimum_ptr, block, N, n, R, SCALING, HAS_MIN, SUPER)
        out = out_ptr + (block * (4 * R) + i * R + r)[:, None] * N + n[None, :]
        tl.store(out, weights.to(tl.float16))
    release(PDL)


def dequantize(planes: Planes, out: Tensor) -> None:
    """Write the transposed weights with their padding, float16 [experts * padded_k, padded_n]."""
    blocks = planes.base.shape[0] // planes.rows
    _dequantize[(blocks, planes.padded_n // COLUMNS)](
        *pointers(planes),
        out,
        planes.padded_n,
        BN=COLUMNS,
        SUPER=SUPER,
        **switches(planes),
        **pdl(out.device),
    )


def dequantize_reference(planes: Planes, out: Tensor) -> None:
    """The same by the definition of planes; out may be float32."""
    weights = definition.dequantize(planes).view(planes.experts, planes.n, planes.k)
    out.zero_()
    out.view(planes.experts, planes.padded_k, -1)[:, : planes.k, : planes.n] = weights.transpose(1, 2)
