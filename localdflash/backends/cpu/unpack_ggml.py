"""ggml's blocks taken apart: codes, scales and super-scales of a tensor's rows, as the file has them. Needs numpy only.

A reader takes blocks [panels, 16 channels, blocks, bytes]. It returns words [panels, 16, groups, 8], each of them the
codes of a quad, four inputs in a byte each; the scales [panels, 16, groups, ...], and the supers [panels, 16, ...] of
formats that have some (kernels/cpu/formats.h). Layouts of blocks: ggml-common.h.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.models.weights.ggml_types import GGMLType

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Parts = tuple[Words, NDArray[Any]] | tuple[Words, NDArray[Any], NDArray[Any]]

QUADS = 8  # of a group of 32
BIT, PAIR, NIBBLE = (np.uint32(0x01010101 * mask) for mask in (1, 3, 15))  # the lowest bits of the four bytes of a word
SPREAD = np.uint32(1 | 1 << 7 | 1 << 14 | 1 << 21)  # times four bits: each on its way into a byte of its own


def read(blocks: Bytes, ggml_type: GGMLType) -> Parts:
    """Take the blocks of a quantized type apart."""
    return READERS[ggml_type](blocks)


def _words(blocks: Bytes) -> Words:
    """Bytes [..., size] as words [..., size / 4]; the copy aligns them, which makes what follows twice as fast."""
    return np.ascontiguousarray(blocks).view(np.uint32)


def _half(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """The float16 at byte `start` of every block: [panels, 16, blocks]."""
    return blocks[..., start : start + 2].view(np.float16)[..., 0]


def _fields(words: Words, mask: np.uint32, shifts: range) -> Words:
    """Fields of the four bytes of words [..., n], by shift: [..., shifts, n]."""
    return np.stack([(words >> np.uint32(shift)) & mask for shift in shifts], -2)


def _by_group(codes: Words) -> Words:
    """[panels, 16, blocks, ...] -> [panels, 16, groups, quads]."""
    return codes.reshape(*codes.shape[:2], -1, QUADS)


def _nibbles(blocks: Bytes, start: int, run: int = 16) -> Words:
    """Nibbles from byte `start` on: of every `run` bytes first all low ones, then all high ones."""
    words = _words(blocks[..., start:])
    return _by_group(_fields(words.reshape(*words.shape[:-1], -1, run // 4), NIBBLE, range(0, 8, 4)))


def _q8_0(blocks: Bytes) -> Parts:
    """A scale and 32 signed codes, which a flipped sign bit offsets by 128."""
    return _words(blocks[..., 2:]) ^ np.uint32(0x80808080), _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Parts:
    """A scale and 16 bytes: low nibbles are weights 0-15, high ones 16-31."""
    return _nibbles(blocks, 2), _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Parts:
    """As Q4_0, with what is added to every weight beside the scale."""
    return _nibbles(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _fifth_bits(blocks: Bytes, start: int) -> Words:
    """Four bytes of which bit i is the fifth bit of weight i, put where it belongs in a code."""
    bits = _words(blocks[..., start : start + 4]) >> np.arange(0, 32, 4, dtype=np.uint32)
    return ((bits & np.uint32(15)) * SPREAD & BIT) << np.uint32(4)


def _q5_0(blocks: Bytes) -> Parts:
    """As Q4_0, with 32 fifth bits before the nibbles."""
    return _nibbles(blocks, 6) | _fifth_bits(blocks, 2), _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Parts:
    """As Q4_1, with 32 fifth bits before the nibbles."""
    return _nibbles(blocks, 8) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _mxfp4(blocks: Bytes) -> Parts:
    """The exponent of a power of two, and nibbles as Q4_0."""
    return _nibbles(blocks, 1), blocks[..., 0]


def _iq4_xs(blocks: Bytes) -> Parts:
    """A super-scale, eight scales of 6 bits less 32, nibbles as Q4_0 for each 32 weights.

    Two bytes hold the high 2 bits of the scales, lowest first; four bytes then the low nibbles, two to a byte.
    """
    high = _words(blocks[..., :4])[..., 0:1] >> np.arange(16, 32, 2, dtype=np.uint32)
    low = np.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).reshape(*blocks.shape[:-1], 8)
    scales = (low | (high.astype(np.uint8) & 3) << 4).view(np.int8) - np.int8(32)
    return _nibbles(blocks, 8), scales.reshape(*scales.shape[:2], -1), _half(blocks, 0)


def _k_scales(blocks: Bytes) -> tuple[Bytes, NDArray[np.float16]]:
    """Of Q4_K and Q5_K: scale and minimum [panels, 16, groups, 2], and d and dmin [panels, 16, blocks, 2].

    Eight pairs of 6 bits in 12 bytes: pairs 0-3 in the low 6 bits of bytes 0-3 (scales) and 4-7 (minimums); pairs 4-7
    have their low 4 bits in bytes 8-11 and their high 2 bits on top of bytes 0-7.
    """
    scales, minimums, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = np.concatenate((scales & 63, (rest & 15) | (scales >> 6 << 4)), -1)
    minimum = np.concatenate((minimums & 63, (rest >> 4) | (minimums >> 6 << 4)), -1)
    both = np.stack((scale, minimum), -1)  # [panels, 16, blocks, 8, 2]
    return both.reshape(*both.shape[:2], -1, 2), np.stack((_half(blocks, 0), _half(blocks, 2)), -1)


def _q4_k(blocks: Bytes) -> Parts:
    """Scales and minimums, and 128 bytes: of 32, low nibbles are one group of 32, high ones the next."""
    return _nibbles(blocks, 16, 32), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> Parts:
    """As Q4_K, with 32 bytes before the nibbles: bit g of byte i is the fifth bit of weight i of group g."""
    fifth = _by_group(_fields(_words(blocks[..., 16:48]), BIT, range(8)))
    return _nibbles(blocks, 48, 32) | fifth << np.uint32(4), *_k_scales(blocks)


def _q6_k(blocks: Bytes) -> Parts:
    """128 bytes of nibbles, 64 of bit pairs, 16 signed scales and a super-scale.

    Each half of 128 weights has 64 nibble bytes (first all low, then all high nibbles) and 32 bytes of bit pairs, whose
    four fields top up the four groups of 32 weights.
    """
    scales = blocks[..., 192:208].view(np.int8).reshape(*blocks.shape[:2], -1, 2)
    codes = _nibbles(blocks[..., :128], 0, 64) | _pairs(blocks[..., 128:192]) << np.uint32(4)
    return codes, scales, _half(blocks, 208)


def _pairs(blocks: Bytes) -> Words:
    """Bit pairs, 32 bytes for each 128 weights: their four fields are the four groups."""
    words = _words(blocks)
    return _by_group(_fields(words.reshape(*words.shape[:-1], -1, QUADS), PAIR, range(0, 8, 2)))


def _q3_k(blocks: Bytes) -> Parts:
    """32 bytes of third bits, 64 of bit pairs, 12 of scales of 6 bits less 32, and a super-scale.

    Bit g of byte i is the third bit of weight i of group g. The low nibbles of scales 0-7 and 8-15 share 8 bytes; four
    more have the high 2 bits of scales 0-3, 4-7, 8-11 and 12-15.
    """
    third = _by_group(_fields(_words(blocks[..., :32]), BIT, range(8)))
    codes = _pairs(blocks[..., 32:96]) | third << np.uint32(2)
    nibbles, pairs = blocks[..., 96:104], blocks[..., 104:108]
    low = np.concatenate((nibbles & 15, nibbles >> 4), -1)
    high = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return codes, scales.reshape(*blocks.shape[:2], -1, 2), _half(blocks, 108)


def _q2_k(blocks: Bytes) -> Parts:
    """16 bytes of scales (low nibbles) and minimums, 64 of bit pairs, and two super-scales."""
    scales = blocks[..., :16].reshape(*blocks.shape[:2], -1, 2)
    return _pairs(blocks[..., 16:80]), scales, np.stack((_half(blocks, 80), _half(blocks, 82)), -1)


READERS: dict[GGMLType, Callable[[Bytes], Parts]] = {
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _q4_0,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.MXFP4: _mxfp4,
}
