"""Embeddings of 16 token ids from a quantized table [V, H], and the first norm of the decoder.

In planes, which are transposed, an embedding is a column. A program computes one embedding, to sum its squares.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import plane_constants, pointers
from localdflash.kernels.cuda.planes import SUPER, Planes

ROWS = 16
GROUP = 32  # columns under one entry of `sums`


@triton.jit
def _value(code, ZERO: tl.constexpr, CODE: tl.constexpr):
    """Return the values of codes (int32), float32. Codes of e2m1 are converted through float16 bits and scaled."""
    if CODE == "e2m1":
        bits = ((code & 8) << 12) | ((code & 7) << 9)
        value = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
    else:
        value = (code - ZERO).to(tl.float32)
    return value


@triton.jit
def _half(word, i):
    """Return one float16 half of an int32 (0 is the low one), as float32."""
    return (word >> (16 * i)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def decode_weights(base, high, scales, supers, minimums, N, column, block, field, r, live, R: tl.constexpr,
                   HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr,
                   CODE: tl.constexpr, SUPER: tl.constexpr):  # fmt: skip
    """Return weights block * 4R + field * R + r of a column, float32 in the indices' broadcast shape.

    Each word and scale is loaded once for all weights that share it. Where the mask `live` is false, nothing is loaded,
    and the result is an arbitrary finite number.
    """
    word = block * R + r
    place = word.to(tl.int64) * N + column
    code = (tl.load(base + place, mask=live, other=0).to(tl.int32) >> (4 * field)) & 15
    if HIGH_BITS == 2:
        place = (word // 32 * 16 + word % 16).to(tl.int64) * N + column
        top = tl.load(high + place, mask=live, other=0).to(tl.int32) >> (word // 16 % 2 * 8)
        code = code | (((top >> (field % 2 * 4 + field // 2 * 2)) & 3) << 4)
    elif HIGH_BITS == 4:
        top = tl.load(high + place, mask=live, other=0).to(tl.int32) >> (4 * field)
        code = code | ((top & 15) << 4)
    at = block.to(tl.int64) * N + column
    if SCALING == "half4":
        pair = (block * 2 + field // 2).to(tl.int64) * N + column
        scale = _half(tl.load(scales + pair, mask=live, other=0), field % 2)
    elif SCALING == "byte4":
        pair = tl.load(supers + (block * (4 * R) // SUPER).to(tl.int64) * N + column, mask=live, other=0)
        quad = tl.load(scales + at, mask=live, other=0)
        byte = (quad << (24 - 8 * field)) >> 24 if R == 16 else (quad >> (8 * field)) & 255
        scale = byte.to(tl.float32)
    else:
        scale = tl.load(scales + at, mask=live, other=0.0)
    weight = _value(code, ZERO, CODE) * scale
    if SCALING == "byte4":
        weight = weight.to(tl.float16).to(tl.float32) * _half(pair, 0)
    if HAS_MIN:
        if SCALING == "half4":
            weight -= _half(tl.load(minimums + pair, mask=live, other=0), field % 2)
        else:
            quad = tl.load(minimums + at, mask=live, other=0)
            weight -= _half(pair, 1) * ((quad >> (8 * field)) & 255).to(tl.float32)
    return weight


@Kernel
@triton.jit
def _embed(ids, base, high, scales, supers, minimums, gain, x, a, sums, squares, V, N, H, stride, tiles, scale, eps,
           BLOCKS: tl.constexpr, TILES: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr,
           SCALING: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
           SUPER: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (16 rows,)."""
    m = tl.program_id(0)
    block = tl.arange(0, BLOCKS)[:, None, None]
    field = tl.arange(0, 4)[None, :, None]
    r = tl.arange(0, R)[None, None, :]
    k = block * (4 * R) + field * R + r
    g = tl.load(gain + k, mask=k < H, other=0.0).to(tl.float32)
    wait(PDL)
    release(PDL)
    # Unused rows may contain any id, which must not read outside the table.
    column = tl.minimum(tl.maximum(tl.load(ids + m), 0), V - 1)
    weight = decode_weights(base, high, scales, supers, minimums, N, column, block, field, r, block * (4 * R) < H,
                            R, HIGH_BITS, SCALING, HAS_MIN, ZERO, CODE, SUPER)  # fmt: skip
    row = tl.where(k < H, weight * scale, 0.0)
    tl.store(x + m * H + k, row, mask=k < H)
    total = tl.sum(tl.reshape(row * row, [BLOCKS * 4 * R]), 0)
    normed = (row * g * tl.rsqrt(total / H + eps)).to(a.dtype.element_ty)
    tl.store(a + m * stride + k, normed, mask=k < H)
    group_sums = tl.sum(normed.to(tl.float32), 2)  # [BLOCKS, 4] of R each
    if R == 16:  # split, because Triton 3.6 computes a wrong sum over this axis, which crosses warps
        low, high = tl.split(tl.reshape(group_sums, [BLOCKS, 2, 2]))
        group_sums = low + high
    PER_BLOCK: tl.constexpr = R // 8
    group = tl.arange(0, BLOCKS)[:, None] * PER_BLOCK + tl.arange(0, PER_BLOCK)[None, :]
    tl.store(sums + group * 16 + m, group_sums, mask=group * 32 < H)
    tile = tl.arange(0, TILES)
    tl.store(squares + tile * 16 + m, tl.where(tile == 0, total, 0.0), mask=tile < tiles)


def embed(
    ids: Tensor,
    table: Planes,
    gain: Tensor,
    x: Tensor,
    a: Tensor,
    sums: Tensor,
    squares: Tensor,
    scale: float,
    eps: float,
) -> None:
    """Write x = table[ids] * scale, a = x * gain * rstd(x), the group sums of a, and squares[0] = sum of x^2, others 0.

    ids: int32 [16]; an id outside the table reads its first or last row. gain: [H]. x: float32 [16, H]. a: float16
    [16, K], K >= H, and sums: float32 [K / 32, 16], both zero from H on before and after. squares: float32 [P, 16].
    The norm of `a` is complete: its consumer uses `squares` as both `Norm.squares` and `Norm.before`.
    """
    constants = plane_constants(table)
    del constants["ASM"]
    blocks, tiles = triton.cdiv(table.k, 4 * table.block_words), squares.shape[0]
    _embed[(ROWS,)](
        ids, *pointers(table), gain, x, a, sums, squares, table.n, table.padded_n, table.k, a.shape[1], tiles,
        scale, eps, BLOCKS=triton.next_power_of_2(blocks), TILES=triton.next_power_of_2(tiles), SUPER=SUPER,
        num_warps=8, **constants, **every_launch(x.device),
    )  # fmt: skip


def embed_reference(
    ids: Tensor,
    table: Planes,
    gain: Tensor,
    x: Tensor,
    a: Tensor,
    sums: Tensor,
    squares: Tensor,
    scale: float,
    eps: float,
) -> None:
    """Do what `embed` does, in torch; `a` may be float32."""
    h = table.k
    x.copy_(table.dense[ids.long().clamp(0, table.n - 1)] * scale)
    total = x.square().sum(-1)
    a.zero_()
    a[:, :h] = x * gain * torch.rsqrt(total / h + eps).unsqueeze(-1)
    sums.copy_(a.float().view(ROWS, -1, GROUP).sum(-1).t())
    squares.zero_()
    squares[0] = total
