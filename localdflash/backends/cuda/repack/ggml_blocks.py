"""Unpacks ggml blocks, uint8 [rows, blocks, bytes], or float weights, and writes them into `Planes`.

Files store a matrix as rows [rows, k]; planes store its transpose [k, rows], codes and scales in separate tensors.
A "block" is a ggml block (see ggml-common.h) in functions that unpack, else a block of planes. Scalings of planes:

* "block" scaling stores a float32 scale per 128 weights. Float types are quantized to this format.
* "half4" stores a float16 scale, and for some types a minimum, per group of a ggml block.
* "byte4" stores 8-bit scales and minimums per group, and a pair of float16 super-scales per 256 weights (K-quants).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import COLUMNS, SUPER, Code, Planes, Scaling, pack_bytes, pack_fields, pack_halves
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import padded
from localdflash.models.weights.quants import split_bits

# Weights unpacked at a time: 0.1 GB of intermediates, and few enough launches on a GPU.
CHUNK_WEIGHTS = 1 << 22


@dataclass(frozen=True)
class PlaneLayout:
    """Properties of planes that do not depend on the matrix; see `Planes`."""

    block_words: int  # R of planes; with "half4" and "byte4" also the weights per scale
    high_bits: int
    scaling: Scaling
    zero: int = 0
    code: Code = "int"
    has_minimum: bool = False


@dataclass(frozen=True)
class UnpackedRows:
    """Codes of some rows of a matrix, with a scale per group: 128 weights for "block" scaling, else `block_words`."""

    codes: Tensor  # uint8 [rows, k]
    scale: Tensor  # [rows, groups]: float32 ("block"), float16 ("half4"), uint8 or int8 ("byte4")
    minimum: Tensor | None = None  # [rows, groups]: float16 ("half4") or uint8 ("byte4")
    supers: Tensor | None = None  # float16 [rows, k / 256, 2]: factors of the scales and of the minimums ("byte4")


INT8 = PlaneLayout(block_words=32, high_bits=4, scaling="block", zero=128)
INT4 = PlaneLayout(block_words=32, high_bits=0, scaling="block", zero=8)
QUANT_GROUP = 128  # weights per scale of "block" scaling
FIELDS = 4  # weights per word of `Planes.base`


def half_scales(scale: Tensor) -> Tensor:
    """Convert float scales to float16; ModelError if one is too large."""
    half = scale.to(torch.float16)
    if bool(half.isinf().any()):
        raise ModelError("the scales are too large for float16; use `--backend llama.cpp`")
    return half


def empty(layout: PlaneLayout, n: int, k: int, experts: int, device: torch.device) -> Planes:
    """Return planes of the given layout with zero weights."""
    block_weights = FIELDS * layout.block_words
    columns, k_padded = padded(n, COLUMNS), experts * padded(k, block_weights)
    blocks = k_padded // block_weights

    def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(*shape, columns, dtype=dtype, device=device)

    words = (blocks, 2) if layout.scaling == "half4" else (blocks,)
    scale = zeros(torch.float32 if layout.scaling == "block" else torch.int32, *words)
    return Planes(
        n=n,
        k=k,
        block_words=layout.block_words,
        base=zeros(torch.int16, k_padded // FIELDS),
        high=zeros(torch.int16, k_padded * layout.high_bits // 16) if layout.high_bits else None,
        scaling=layout.scaling,
        scale=scale,
        supers=zeros(torch.int32, k_padded // SUPER) if layout.scaling == "byte4" else None,
        minimum=torch.zeros_like(scale) if layout.has_minimum else None,
        zero=layout.zero,
        code=layout.code,
        experts=experts,
    )


def fill(planes: Planes, expert: int, unpack: Callable[[slice], UnpackedRows]) -> None:
    """Write the matrix of one expert in chunks of rows; `unpack` returns the rows of a slice."""
    step = padded(max(1, CHUNK_WEIGHTS // planes.k), COLUMNS)
    for first in range(0, planes.n, step):
        rows = slice(first, min(first + step, planes.n))
        _write(planes, expert, rows, unpack(rows))


def _write(planes: Planes, expert: int, rows: slice, unpacked: UnpackedRows) -> None:
    """Write rows of a matrix, which are columns of the planes."""
    p = planes

    def put(plane: Tensor, words: Tensor) -> None:
        plane.view(p.experts, -1, *plane.shape[1:])[expert][..., rows] = words

    codes = _columns(unpacked.codes, p.padded_k)
    put(p.base, pack_fields(codes & 15, p.block_words, 4))
    if p.high is not None:
        put(p.high, pack_fields(codes >> 4, p.block_words, p.high_bits))
    put(p.scale, _group_words(p, unpacked.scale))
    if p.minimum is not None:
        assert unpacked.minimum is not None
        put(p.minimum, _group_words(p, unpacked.minimum))
    if p.supers is not None:
        assert unpacked.supers is not None
        put(p.supers, pack_halves(unpacked.supers[..., 0], unpacked.supers[..., 1]).t())


def _columns(values: Tensor, size: int) -> Tensor:
    """Return values [rows, size or less] transposed, [size, rows], padded with zeros."""
    return F.pad(values, (0, size - values.shape[1])).t()


def _group_words(planes: Planes, groups: Tensor) -> Tensor:
    """Return scales or minimums by group, [rows, groups], in the layout of planes."""
    group_size = QUANT_GROUP if planes.scaling == "block" else planes.block_words
    columns = _columns(groups, planes.padded_k // group_size)
    if planes.scaling == "half4":
        pairs = columns.reshape(-1, 2, 2, columns.shape[1])  # [blocks, word, half, rows]
        columns = pack_halves(pairs[:, :, 0], pairs[:, :, 1])
    return pack_bytes(columns) if planes.scaling == "byte4" else columns


def quantize(weights: Tensor, bits: int = 8) -> Planes:
    """Quantize [n, k] float weights to planes with "block" scaling; the error is at most half a step."""
    n, k = weights.shape
    planes = empty({8: INT8, 4: INT4}[bits], n, k, 1, weights.device)
    fill(planes, 0, lambda rows: quantize_rows(weights[rows], bits))
    return planes


def quantize_rows(weights: Tensor, bits: int = 8) -> UnpackedRows:
    """Quantize rows [rows, k] to codes [rows, k] and a scale per 128 weights [rows, ceil(k / 128)]."""
    rows, k = weights.shape
    limit = 2 ** (bits - 1) - 1
    groups = F.pad(weights.float(), (0, -k % QUANT_GROUP)).view(rows, -1, QUANT_GROUP)
    scale = groups.abs().amax(-1) / limit
    steps = torch.where(scale > 0, scale, 1).unsqueeze(-1)
    codes = (groups / steps).round().clamp(-limit, limit) + 2 ** (bits - 1)
    return UnpackedRows(codes=codes.to(torch.uint8).view(rows, -1)[:, :k], scale=scale)


# Exponents of the powers of two that a float16 can hold, subnormal ones included.
MIN_EXPONENT, MAX_EXPONENT = -24, 15
E8M0_BIAS = 127


def _number(blocks: Tensor, start: int, dtype: torch.dtype) -> Tensor:
    """Return the number at byte `start` of every block: [rows, blocks]. The copy aligns it."""
    return blocks[..., start : start + dtype.itemsize].contiguous().view(dtype).squeeze(-1)


def _cut(packed: Tensor, size: int) -> Tensor:
    """Return packed [rows, blocks, bytes] as [rows, blocks, bytes / size, size]."""
    return packed.reshape(*packed.shape[:2], -1, size)


def _floats(blocks: Tensor, dtype: torch.dtype) -> UnpackedRows:
    return quantize_rows(_number(blocks, 0, dtype))


def _q4_0(blocks: Tensor) -> UnpackedRows:
    """Unpack a float16 scale and 16 bytes: low nibbles are weights 0-15, high nibbles 16-31; codes are offset by 8."""
    return UnpackedRows(split_bits(blocks[..., 2:], 4).flatten(1), _number(blocks, 0, torch.float16))


def _q4_1(blocks: Tensor) -> UnpackedRows:
    """Unpack Q4_0's layout with a minimum and without an offset. Planes subtract the minimum, Q4_1 adds it."""
    codes, minimum = split_bits(blocks[..., 4:], 4).flatten(1), -_number(blocks, 2, torch.float16)
    return UnpackedRows(codes, _number(blocks, 0, torch.float16), minimum)


def _q8_0(blocks: Tensor) -> UnpackedRows:
    """Unpack a float16 scale and 32 signed codes, which a flipped sign bit offsets by 128."""
    return UnpackedRows((blocks[..., 2:] ^ 0x80).flatten(1), _number(blocks, 0, torch.float16))


def _k_groups(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scales and minimums of Q4_K and Q5_K, uint8 [rows, 8 * blocks] each, and their super-scales.

    Groups 0-3 have the low 6 bits of bytes 0-3 (scales) and 4-7 (minimums); groups 4-7 have their low 4 bits in bytes
    8-11 and their high 2 bits on top of bytes 0-7.
    """
    scales, minimums, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = torch.cat((scales & 63, (rest & 15) | ((scales >> 6) << 4)), -1)
    minimum = torch.cat((minimums & 63, (rest >> 4) | ((minimums >> 6) << 4)), -1)
    supers = torch.stack((_number(blocks, 0, torch.float16), _number(blocks, 2, torch.float16)), -1)
    return scale.flatten(1), minimum.flatten(1), supers


def _q4_k(blocks: Tensor) -> UnpackedRows:
    """Unpack group scales and 128 bytes: 32 bytes hold a group in the low nibbles, and the next in the high nibbles."""
    scale, minimum, supers = _k_groups(blocks)
    codes = split_bits(_cut(blocks[..., 16:], 32), 4)
    return UnpackedRows(codes.flatten(1), scale, minimum, supers)


def _q5_k(blocks: Tensor) -> UnpackedRows:
    """Unpack Q4_K's layout with 32 bytes before the nibbles: bit g of byte i is bit 4 of weight i of group g."""
    scale, minimum, supers = _k_groups(blocks)
    low = split_bits(_cut(blocks[..., 48:], 32), 4).flatten(-3, -2)  # [rows, blocks, 8, 32]
    codes = low | (split_bits(blocks[..., 16:48], 1) << 4)
    return UnpackedRows(codes.flatten(1), scale, minimum, supers)


def _q6_k(blocks: Tensor) -> UnpackedRows:
    """Unpack, per 128 weights, 64 bytes of nibbles (low nibbles first) and 32 of bit pairs; codes are offset by 32."""
    low = split_bits(_cut(blocks[..., :128], 64), 4).flatten(1)
    high = split_bits(_cut(blocks[..., 128:192], 32), 2).flatten(1)
    scale = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    d = _number(blocks, 208, torch.float16)
    return UnpackedRows(low | (high << 4), scale, supers=torch.stack((d, torch.zeros_like(d)), -1))


def _mxfp4(blocks: Tensor) -> UnpackedRows:
    """Unpack the exponent of a power of two (e8m0), and 16 bytes: low nibbles are weights 0-15, high nibbles 16-31."""
    codes = split_bits(blocks[..., 1:], 4).flatten(-2)
    return UnpackedRows(codes.flatten(1), _powers_of_two(blocks[..., 0], codes))


def _powers_of_two(exponents: Tensor, codes: Tensor) -> Tensor:
    """Convert e8m0 scales to float16; ModelError if one does not fit, unless its e2m1 `codes` [..., 32] are all 0."""
    exponent = exponents.to(torch.int32) - E8M0_BIAS
    fits = (exponent >= MIN_EXPONENT) & (exponent <= MAX_EXPONENT)
    is_used = ((codes & 7) != 0).any(-1)
    if bool((is_used & ~fits).any()):
        wrong = exponent[is_used & ~fits]
        raise ModelError(
            f"MXFP4 scales from 2^{int(wrong.min())} to 2^{int(wrong.max())} are beyond float16;"
            " use `--backend llama.cpp`"
        )
    return torch.where(fits, torch.exp2(exponent.float()), 0).to(torch.float16)


def _nvfp4(blocks: Tensor) -> UnpackedRows:
    """Unpack four unsigned e4m3 scales (NaN code 127 reads as 0) and 8 bytes for each: low nibbles are weights 0-7."""
    codes = split_bits(_cut(blocks[..., 4:], 8), 4).flatten(1)
    scale = blocks[..., :4].flatten(1)
    scale = torch.where(scale == 127, 0, scale)
    return UnpackedRows(codes, scale.view(torch.float8_e4m3fn).to(torch.float16))


_BYTE4 = PlaneLayout(block_words=32, high_bits=0, scaling="byte4", has_minimum=True)
FORMATS: dict[GGMLType, tuple[PlaneLayout, Callable[[Tensor], UnpackedRows]]] = {
    GGMLType.F32: (INT8, partial(_floats, dtype=torch.float32)),
    GGMLType.F16: (INT8, partial(_floats, dtype=torch.float16)),
    GGMLType.BF16: (INT8, partial(_floats, dtype=torch.bfloat16)),
    GGMLType.Q4_0: (PlaneLayout(block_words=32, high_bits=0, scaling="half4", zero=8), _q4_0),
    GGMLType.Q4_1: (PlaneLayout(block_words=32, high_bits=0, scaling="half4", has_minimum=True), _q4_1),
    GGMLType.Q8_0: (PlaneLayout(block_words=32, high_bits=4, scaling="half4", zero=128), _q8_0),
    GGMLType.Q4_K: (_BYTE4, _q4_k),
    # One of the two high bits is unused: 6.75 bits per weight instead of 5.75, but no additional kernel.
    GGMLType.Q5_K: (PlaneLayout(block_words=32, high_bits=2, scaling="byte4", has_minimum=True), _q5_k),
    GGMLType.Q6_K: (PlaneLayout(block_words=16, high_bits=2, scaling="byte4", zero=32), _q6_k),
    GGMLType.MXFP4: (PlaneLayout(block_words=32, high_bits=0, scaling="half4", code="e2m1"), _mxfp4),
    GGMLType.NVFP4: (PlaneLayout(block_words=16, high_bits=0, scaling="half4", code="e2m1"), _nvfp4),
}
