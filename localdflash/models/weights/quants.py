"""Dequantizes ggml blocks in torch on any device, bit-identical to gguf-py's numpy dequantizers.

An unpacker takes blocks, uint8 [n, bytes per block], and returns float32 [n, weights per block]. Scales of the
K-quants: a half-precision scale of the whole block of 256 times a small integer per group of 16 or 32 weights.
Layouts: ggml-common.h.
"""

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType

CHUNK_WEIGHTS = 1 << 18  # weights unpacked at a time, so that intermediates stay in the CPU's cache
# Values of nibbles in IQ4_NL and IQ4_XS, and doubled values in MXFP4.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def dequantize(raw: Tensor, ggml_type: GGMLType, shape: tuple[int, ...], subject: str = "weights") -> Tensor:
    """Unpack raw blocks (uint8, any shape, contiguous) into a new float32 tensor of this shape, on their device."""
    unpack = _UNPACKERS.get(ggml_type)
    if unpack is None:
        raise ModelError(f"{subject}: torch cannot read weights of type {ggml_type.name}; use the llama.cpp backend")
    blocks = raw.view(-1, ggml_type.block_bytes)
    weights = torch.empty(prod(shape), device=raw.device).view(-1, ggml_type.block_weights)
    if len(blocks) != len(weights):
        raise ValueError(f"{raw.numel()} bytes of {ggml_type.name} are not a tensor of shape {shape}")
    step = CHUNK_WEIGHTS // ggml_type.block_weights
    for start in range(0, len(blocks), step):
        weights[start : start + step] = unpack(blocks[start : start + step])
    return weights.view(shape)


def _as_float(raw: Tensor, kind: torch.dtype) -> Tensor:
    """Read bytes as numbers of the given kind: uint8 [n, bytes] -> float32 [n, numbers]. `view` needs alignment."""
    return raw.clone(memory_format=torch.contiguous_format).view(kind).float()


def _half(blocks: Tensor, start: int) -> Tensor:
    """Read the half-precision number at byte `start` of every block: float32 [n, 1]."""
    return _as_float(blocks[:, start : start + 2], torch.float16)


def split_bits(packed: Tensor, width: int) -> Tensor:
    """Split bytes into fields of `width` bits, lowest first: uint8 [..., size] -> [..., 8 / width, size]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-2) >> shifts.unsqueeze(-1)).bitwise_and(2**width - 1)


def _q4_0(blocks: Tensor) -> Tensor:
    """Unpack a scale and 16 bytes: low nibbles are weights 0-15, high nibbles 16-31; codes are offset by 8."""
    codes = split_bits(blocks[:, 2:], 4).flatten(1).float() - 8
    return _half(blocks, 0) * codes


def _q4_1(blocks: Tensor) -> Tensor:
    """Unpack like Q4_0, with a minimum that is added to every weight, and codes without an offset."""
    codes = split_bits(blocks[:, 4:], 4).flatten(1).float()
    return _half(blocks, 0) * codes + _half(blocks, 2)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """Return bit i of four bytes as the fifth bit of the code of weight i: uint8 [n, 32]."""
    bits = split_bits(blocks[:, start : start + 4, None], 1).flatten(1)
    return bits << 4


def _q5_0(blocks: Tensor) -> Tensor:
    """Unpack like Q4_0, with 32 fifth bits before the nibbles; codes are offset by 16."""
    codes = (split_bits(blocks[:, 6:], 4).flatten(1) | _fifth_bits(blocks, 2)).float() - 16
    return _half(blocks, 0) * codes


def _q5_1(blocks: Tensor) -> Tensor:
    """Unpack like Q4_1, with 32 fifth bits before the nibbles."""
    codes = (split_bits(blocks[:, 8:], 4).flatten(1) | _fifth_bits(blocks, 4)).float()
    return _half(blocks, 0) * codes + _half(blocks, 2)


def _look_up(nibbles: Tensor, values: tuple[int, ...]) -> Tensor:
    """Return the values of nibbles, float32."""
    return torch.tensor(values, dtype=torch.float32, device=nibbles.device)[nibbles.int()]


def _iq4_nl(blocks: Tensor) -> Tensor:
    """Unpack like Q4_0, but nibbles index `IQ4_VALUES`."""
    return _half(blocks, 0) * _look_up(split_bits(blocks[:, 2:], 4).flatten(1), IQ4_VALUES)


def _iq4_xs(blocks: Tensor) -> Tensor:
    """Unpack a block scale, eight 6-bit scales offset by 32, then 16 bytes like IQ4_NL for each 32 weights.

    Two bytes hold the high 2 bits of the scales, lowest first; the next four hold the low 4 bits, two scales a byte.
    """
    high = split_bits(blocks[:, 2:4, None], 2).flatten(1)
    low = split_bits(blocks[:, 4:8, None], 4).flatten(1)
    scale = _half(blocks, 0) * ((low | (high << 4)).float() - 32)
    values = _look_up(split_bits(blocks[:, 8:].reshape(-1, 8, 16), 4).flatten(2), IQ4_VALUES)
    return (scale.unsqueeze(-1) * values).flatten(1)


def _mxfp4(blocks: Tensor) -> Tensor:
    """Unpack an exponent byte e and 16 bytes of nibbles, like Q4_0.

    `E2M1_VALUES` are doubled, so the scale is 2^(e - 128) instead of 2^(e - 127), subnormal for e of 0 and 1. An e of
    255 is NaN in the MX standard; ggml gives a scale of 2^127.
    """
    e = blocks[:, :1].int()
    scale = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1) << 23).view(torch.float32)
    return scale * _look_up(split_bits(blocks[:, 1:], 4).flatten(1), E2M1_VALUES)


def _q8_0(blocks: Tensor) -> Tensor:
    """Unpack a scale and 32 signed codes."""
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _group_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack the scales and minimums of Q4_K and Q5_K, float32 [n, 8, 1] each.

    Two block scales, then eight 6-bit scales and eight 6-bit minimums (to subtract) in 12 bytes. Numbers 0-3: the low 6
    bits of bytes 0-3 (scales) and 4-7 (minimums). Numbers 4-7: the low (scales) and high (minimums) nibbles of bytes
    8-11, with their high 2 bits in the top bits of bytes 0-3 (scales) and 4-7 (minimums).
    """
    scales, minimums, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat((scales & 63, (rest & 15) | ((scales >> 6) << 4)), dim=1)
    minimum = torch.cat((minimums & 63, (rest >> 4) | ((minimums >> 6) << 4)), dim=1)
    return (_half(blocks, 0) * scale).unsqueeze(-1), (_half(blocks, 2) * minimum).unsqueeze(-1)


def _q4_k(blocks: Tensor) -> Tensor:
    """Unpack group scales and 128 bytes: of each 32 bytes, low nibbles are 32 weights, high nibbles the next 32."""
    scale, minimum = _group_scales(blocks)
    codes = split_bits(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return (scale * codes - minimum).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    """Unpack like Q4_K, with 32 bytes before the nibbles: bit g of byte i is the fifth bit of weight i of group g."""
    scale, minimum = _group_scales(blocks)
    low = split_bits(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    codes = low | (split_bits(blocks[:, 16:48], 1) << 4)
    return (scale * codes - minimum).flatten(1)


def _two_bit_codes(packed: Tensor) -> Tensor:
    """Unpack 32 bytes for each 128 weights; bits 2k and 2k + 1 belong to weights 32k to 32k + 31: uint8 [n, 16, 16]."""
    return split_bits(packed.reshape(-1, 2, 32), 2).reshape(-1, 16, 16)


def _q2_k(blocks: Tensor) -> Tensor:
    """Unpack 16 bytes of scales (low nibbles) and minimums to subtract, 64 of 2-bit codes, and two block scales."""
    scale = (_half(blocks, 80) * (blocks[:, :16] & 15)).unsqueeze(-1)
    minimum = (_half(blocks, 82) * (blocks[:, :16] >> 4)).unsqueeze(-1)
    return (scale * _two_bit_codes(blocks[:, 16:80]) - minimum).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    """Unpack 32 bytes of third bits, 64 of 2-bit codes, 12 of 6-bit scales (offset by 32), a scale; codes offset by 4.

    Bit g of byte i is the third bit of weight 32 g + i. Eight bytes hold the low 4 bits of scales 0-7 (low nibbles) and
    8-15; the next four hold the high 2 bits of scales 0-3, 4-7, 8-11 and 12-15.
    """
    third = split_bits(blocks[:, :32], 1).reshape(-1, 16, 16)
    codes = (_two_bit_codes(blocks[:, 32:96]) | (third << 2)).float() - 4
    low, high = split_bits(blocks[:, 96:104], 4).flatten(1), split_bits(blocks[:, 104:108], 2).flatten(1)
    scale = _half(blocks, 108) * ((low | (high << 4)).float() - 32)
    return (scale.unsqueeze(-1) * codes).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """Unpack 128 bytes of nibbles, 64 of high bits, 16 signed group scales and a scale; codes are offset by 32.

    Each half of 128 weights has 64 bytes of low 4 bits (first all low, then all high nibbles), and 32 bytes of high 2
    bits, of which bits 2k and 2k + 1 belong to weights 32k to 32k + 31.
    """
    low = split_bits(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    high = split_bits(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    codes = (low | (high << 4)).reshape(-1, 16, 16).float() - 32
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return (scale.unsqueeze(-1) * codes).flatten(1)


_UNPACKERS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: partial(_as_float, kind=torch.float32),
    GGMLType.F16: partial(_as_float, kind=torch.float16),
    GGMLType.BF16: partial(_as_float, kind=torch.bfloat16),
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.MXFP4: _mxfp4,
}
