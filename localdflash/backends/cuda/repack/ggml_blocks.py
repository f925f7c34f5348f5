"""From ggml blocks to codes and scales, exactly as the file has them; vectorised in torch, on any device.

An unpacker takes rows of blocks, uint8 [rows, blocks, bytes per block], and returns `UnpackedRows`.
Layouts: ggml-common.h.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.plane_packing import INT8, PlaneLayout, UnpackedRows, quantize_rows
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType

# The powers of two that a float16 holds: 2^-24 (subnormal) to 2^15.
MIN_EXPONENT, MAX_EXPONENT = -24, 15
E8M0_BIAS = 127


@dataclass(frozen=True)
class BlockFormat:
    """How blocks of a ggml type become planes."""

    layout: PlaneLayout
    unpack: Callable[[Tensor], UnpackedRows]


def _number(blocks: Tensor, start: int, dtype: torch.dtype) -> Tensor:
    """Return the number at byte `start` of every block: [rows, blocks]. The copy aligns it."""
    return blocks[..., start : start + dtype.itemsize].contiguous().view(dtype).squeeze(-1)


def fields(packed: Tensor, width: int) -> Tensor:
    """Split bytes into fields of `width` bits, lowest first: uint8 [..., size] -> [..., 8 / width, size]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-2) >> shifts.unsqueeze(-1)).bitwise_and(2**width - 1)


def _cut(packed: Tensor, size: int) -> Tensor:
    """[rows, blocks, bytes] -> [rows, blocks, bytes / size, size]."""
    return packed.reshape(*packed.shape[:2], -1, size)


def _floats(blocks: Tensor, dtype: torch.dtype) -> UnpackedRows:
    return quantize_rows(_number(blocks, 0, dtype))


def _q4_0(blocks: Tensor) -> UnpackedRows:
    """Return a scale and 16 bytes: low nibbles are weights 0-15, high ones 16-31; codes are offset by 8."""
    return UnpackedRows(fields(blocks[..., 2:], 4).flatten(1), _number(blocks, 0, torch.float16))


def _q4_1(blocks: Tensor) -> UnpackedRows:
    """As Q4_0, with what is added to every weight beside the scale, and codes that have no offset."""
    codes, minimum = fields(blocks[..., 4:], 4).flatten(1), -_number(blocks, 2, torch.float16)
    return UnpackedRows(codes, _number(blocks, 0, torch.float16), minimum)


def _q8_0(blocks: Tensor) -> UnpackedRows:
    """Return a scale and 32 signed codes, which a flipped sign bit offsets by 128."""
    return UnpackedRows((blocks[..., 2:] ^ 0x80).flatten(1), _number(blocks, 0, torch.float16))


def _k_groups(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scales and minimums of Q4_K and Q5_K, uint8 [rows, 8 * blocks] each, and their super-scales.

    Eight pairs of 6 bits in 12 bytes: pairs 0-3 in the low 6 bits of bytes 0-3 (scales) and 4-7 (minimums); pairs 4-7
    have their low 4 bits in bytes 8-11 and their high 2 bits on top of bytes 0-7.
    """
    scales, minimums, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = torch.cat((scales & 63, (rest & 15) | ((scales >> 6) << 4)), -1)
    minimum = torch.cat((minimums & 63, (rest >> 4) | ((minimums >> 6) << 4)), -1)
    supers = torch.stack((_number(blocks, 0, torch.float16), _number(blocks, 2, torch.float16)), -1)
    return scale.flatten(1), minimum.flatten(1), supers


def _q4_k(blocks: Tensor) -> UnpackedRows:
    """Group scales and 128 bytes: of each run of 32, low nibbles are one group of 32, high ones the next."""
    scale, minimum, supers = _k_groups(blocks)
    codes = fields(_cut(blocks[..., 16:], 32), 4)
    return UnpackedRows(codes.flatten(1), scale, minimum, supers)


def _q5_k(blocks: Tensor) -> UnpackedRows:
    """As Q4_K, with 32 bytes before the nibbles: bit g of byte i is the fifth bit of weight i of group g."""
    scale, minimum, supers = _k_groups(blocks)
    low = fields(_cut(blocks[..., 48:], 32), 4).flatten(-3, -2)  # [rows, blocks, 8, 32]
    codes = low | (fields(blocks[..., 16:48], 1) << 4)
    return UnpackedRows(codes.flatten(1), scale, minimum, supers)


def _q6_k(blocks: Tensor) -> UnpackedRows:
    """128 bytes of nibbles, 64 of bit pairs, 16 signed group scales and a scale; codes are offset by 32.

    Each half of 128 weights has 64 nibble bytes (first all low, then all high nibbles) and 32 bytes of bit pairs, whose
    four fields top up the four runs of 32 weights.
    """
    low = fields(_cut(blocks[..., :128], 64), 4).flatten(1)
    high = fields(_cut(blocks[..., 128:192], 32), 2).flatten(1)
    scale = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    d = _number(blocks, 208, torch.float16)
    return UnpackedRows(low | (high << 4), scale, supers=torch.stack((d, torch.zeros_like(d)), -1))


def _mxfp4(blocks: Tensor) -> UnpackedRows:
    """Return the exponent of a power of two (e8m0), and 16 bytes: low nibbles are weights 0-15, high ones 16-31."""
    codes = fields(blocks[..., 1:], 4).flatten(-2)
    return UnpackedRows(codes.flatten(1), _powers_of_two(blocks[..., 0], codes))


def _powers_of_two(exponents: Tensor, codes: Tensor) -> Tensor:
    """e8m0 scales as float16: uint8 [...] -> [...]; e2m1 `codes` [..., 32] say which groups are zero anyway.

    ModelError when a scale that counts is none of the powers of two of float16.
    """
    exponent = exponents.to(torch.int32) - E8M0_BIAS
    fits = (exponent >= MIN_EXPONENT) & (exponent <= MAX_EXPONENT)
    counts = ((codes & 7) != 0).any(-1)
    if bool((counts & ~fits).any()):
        wrong = exponent[counts & ~fits]
        raise ModelError(
            f"MXFP4 scales from 2^{int(wrong.min())} to 2^{int(wrong.max())} are beyond float16;"
            " use `--backend llama.cpp`"
        )
    return torch.where(fits, torch.exp2(exponent.float()), 0).to(torch.float16)


def _nvfp4(blocks: Tensor) -> UnpackedRows:
    """Four scales (e4m3 without sign; 127 is no NaN but 0) and 32 bytes.

    Of the 8 bytes of a group of 16, low nibbles are weights 0-7, high ones 8-15.
    """
    codes = fields(_cut(blocks[..., 4:], 8), 4).flatten(1)
    scale = blocks[..., :4].flatten(1)
    scale = torch.where(scale == 127, 0, scale)
    return UnpackedRows(codes, scale.view(torch.float8_e4m3fn).to(torch.float16))


_BYTE4 = PlaneLayout(rows=32, high_bits=0, scaling="byte4", has_minimum=True)
FORMATS: dict[GGMLType, BlockFormat] = {
    GGMLType.F32: BlockFormat(INT8, partial(_floats, dtype=torch.float32)),
    GGMLType.F16: BlockFormat(INT8, partial(_floats, dtype=torch.float16)),
    GGMLType.BF16: BlockFormat(INT8, partial(_floats, dtype=torch.bfloat16)),
    GGMLType.Q4_0: BlockFormat(PlaneLayout(rows=32, high_bits=0, scaling="half4", zero=8), _q4_0),
    GGMLType.Q4_1: BlockFormat(PlaneLayout(rows=32, high_bits=0, scaling="half4", has_minimum=True), _q4_1),
    GGMLType.Q8_0: BlockFormat(PlaneLayout(rows=32, high_bits=4, scaling="half4", zero=128), _q8_0),
    GGMLType.Q4_K: BlockFormat(_BYTE4, _q4_k),
    # Two high bits of which one is used: 6.75 bits a weight instead of 5.75, for one kernel less.
    GGMLType.Q5_K: BlockFormat(PlaneLayout(rows=32, high_bits=2, scaling="byte4", has_minimum=True), _q5_k),
    GGMLType.Q6_K: BlockFormat(PlaneLayout(rows=16, high_bits=2, scaling="byte4", zero=32), _q6_k),
    GGMLType.MXFP4: BlockFormat(PlaneLayout(rows=32, high_bits=0, scaling="half4", code="e2m1"), _mxfp4),
    GGMLType.NVFP4: BlockFormat(PlaneLayout(rows=16, high_bits=0, scaling="half4", code="e2m1"), _nvfp4),
}
