"""Packs ggml blocks into the layout that the CPU kernels read; see kernels/cpu/formats.h.

Quantized types are packed without rounding. Float matrices are rounded to Q8_0 as ggml does, or to Q4_0 for a 4-bit
drafter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localdflash.backends.cpu.cpu_library import allocate_aligned
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Unpacked = tuple[Words, NDArray[Any]] | tuple[Words, NDArray[Any], NDArray[Any]]

PANEL, GROUP, SUPER = 16, 32, 256  # channels of a panel, inputs of a scale, inputs of a super-scale
QUADS = 8  # words of four inputs in a group of 32
BIT, PAIR, NIBBLE = (np.uint32(0x01010101 * mask) for mask in (1, 3, 15))  # masks of the lowest bits of each byte
SPREAD = np.uint32(1 | 1 << 7 | 1 << 14 | 1 << 21)  # factor that moves each of four bits into its own byte
ALMOST_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # 0.5 would round numbers just below 0.5 up to 1
NOT_A_NUMBER = 255  # exponent of MXFP4


class Kind(IntEnum):
    """Packed format of a matrix, numbered as in formats.h."""

    Q8_0 = 0
    Q4_0 = 1
    Q4_K = 2
    Q6_K = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q5_K = 7
    Q3_K = 8
    Q2_K = 9
    IQ4_NL = 10
    IQ4_XS = 11
    MXFP4 = 12


class Layout(NamedTuple):
    """Bit planes of the codes, type and shape of a group's scales, and inputs and shape of a super-scale, if any."""

    planes: tuple[int, ...]
    scales: tuple[DTypeLike, tuple[int, ...]]
    supers: tuple[int, tuple[int, ...]] | None = None


LAYOUTS = {
    Kind.Q8_0: Layout((8,), (np.float16, ())),
    Kind.Q4_0: Layout((4,), (np.float16, ())),
    Kind.Q5_0: Layout((4, 1), (np.float16, ())),
    Kind.IQ4_NL: Layout((4,), (np.float16, ())),
    Kind.MXFP4: Layout((4,), (np.uint8, ())),
    Kind.Q4_1: Layout((4,), (np.float16, ()), (GROUP, ())),
    Kind.Q5_1: Layout((4, 1), (np.float16, ()), (GROUP, ())),
    Kind.Q4_K: Layout((4,), (np.uint8, (2,)), (SUPER, (2,))),
    Kind.Q5_K: Layout((4, 1), (np.uint8, (2,)), (SUPER, (2,))),
    Kind.IQ4_XS: Layout((4,), (np.int8, ()), (SUPER, ())),
    Kind.Q6_K: Layout((8,), (np.int8, (2,)), (SUPER, ())),
    Kind.Q3_K: Layout((2, 1), (np.int8, (2,)), (SUPER, ())),
    Kind.Q2_K: Layout((2,), (np.uint8, (2,)), (SUPER, (2,))),
}


class Array(NamedTuple):
    """Element type and shape of an array."""

    dtype: DTypeLike
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.dtype(self.dtype).itemsize * prod(self.shape))


@dataclass(frozen=True)
class MatrixShape:
    """Shape of a packed matrix [n, k], or of `experts` such matrices in sequence, each padded to whole panels."""

    kind: Kind
    n: int
    k: int
    experts: int = 1

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Codes, scales and, if the format has any, supers of all experts, in the order of `pack_rows`."""
        layout, lead = LAYOUTS[self.kind], (self.experts, -(-self.n // PANEL))
        groups, (dtype, parts) = (*lead, self.k // GROUP), layout.scales
        arrays = Array(np.uint8, (*groups, 4 * PANEL * sum(layout.planes))), Array(dtype, (*groups, *parts, PANEL))
        if layout.supers is None:
            return arrays
        inputs, parts = layout.supers
        return *arrays, Array(np.float16, (*lead, self.k // inputs, *parts, PANEL))

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True)
class PackedMatrix:
    """Packed matrix in memory: n / 16 panels, rounded up, of k / 32 groups."""

    kind: Kind
    n: int
    k: int
    experts: int
    codes: Bytes  # codes, scales and supers are the arrays of `MatrixShape`
    scales: NDArray[Any]
    supers: NDArray[np.float16] | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.supers is None else self.supers.nbytes)


# Unpackers of ggml blocks (layouts: ggml-common.h). Each takes blocks [panels, 16 channels, blocks, bytes]. It returns
# codes as words [panels, 16, groups, 8 quads], one byte per input; scales [panels, 16, groups, ...]; and, for formats
# with super-scales, supers [panels, 16, ...].


def _words(blocks: Bytes) -> Words:
    """View bytes [..., size] as words [..., size / 4]; the copy aligns them, which doubles the speed of unpacking."""
    return np.ascontiguousarray(blocks).view(np.uint32)


def _half(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """Return the float16 at byte `start` of every block: [panels, 16, blocks]."""
    return blocks[..., start : start + 2].view(np.float16)[..., 0]


def _fields(words: Words, mask: np.uint32, shifts: range) -> Words:
    """Return the fields of all four bytes of words [..., n], by shift: [..., shifts, n]."""
    return np.stack([(words >> np.uint32(shift)) & mask for shift in shifts], -2)


def _by_group(codes: Words) -> Words:
    """Reshape codes [panels, 16, blocks, ...] to [panels, 16, groups, quads]."""
    return codes.reshape(*codes.shape[:2], -1, QUADS)


def _nibbles(blocks: Bytes, start: int, run: int = 16) -> Words:
    """Return the nibbles from byte `start` on: of every `run` bytes first all low ones, then all high ones."""
    words = _words(blocks[..., start:])
    return _by_group(_fields(words.reshape(*words.shape[:-1], -1, run // 4), NIBBLE, range(0, 8, 4)))


def _q8_0(blocks: Bytes) -> Unpacked:
    """Return a scale and 32 signed codes, which a flipped sign bit offsets by 128."""
    return _words(blocks[..., 2:]) ^ np.uint32(0x80808080), _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Unpacked:
    """Return a scale and 16 bytes: low nibbles are weights 0-15, high ones 16-31."""
    return _nibbles(blocks, 2), _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Unpacked:
    """Like Q4_0, with a minimum that is added to every weight."""
    return _nibbles(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _fifth_bits(blocks: Bytes, start: int) -> Words:
    """Return four bytes, of which bit i is the fifth bit of weight i, shifted to bit 4 of the codes."""
    bits = _words(blocks[..., start : start + 4]) >> np.arange(0, 32, 4, dtype=np.uint32)
    return ((bits & np.uint32(15)) * SPREAD & BIT) << np.uint32(4)


def _q5_0(blocks: Bytes) -> Unpacked:
    """Like Q4_0, with 32 fifth bits before the nibbles."""
    return _nibbles(blocks, 6) | _fifth_bits(blocks, 2), _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Unpacked:
    """Like Q4_1, with 32 fifth bits before the nibbles."""
    return _nibbles(blocks, 8) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _mxfp4(blocks: Bytes) -> Unpacked:
    """Return the exponent of a power of two, and nibbles like Q4_0."""
    return _nibbles(blocks, 1), blocks[..., 0]


def _iq4_xs(blocks: Bytes) -> Unpacked:
    """Unpack eight scales plus 32, high 2 bits in two bytes, low nibbles in four; then nibbles like Q4_0."""
    high = _words(blocks[..., :4])[..., 0:1] >> np.arange(16, 32, 2, dtype=np.uint32)
    low = np.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).reshape(*blocks.shape[:-1], 8)
    scales = (low | (high.astype(np.uint8) & 3) << 4).view(np.int8) - np.int8(32)
    return _nibbles(blocks, 8), scales.reshape(*scales.shape[:2], -1), _half(blocks, 0)


def _k_scales(blocks: Bytes) -> tuple[Bytes, NDArray[np.float16]]:
    """Return Q4_K's and Q5_K's scale and minimum [panels, 16, groups, 2], and d and dmin [panels, 16, blocks, 2].

    Pairs 0-3 are the low 6 bits of bytes 0-3 (scales) and 4-7 (minimums); pairs 4-7 have their low 4 bits in bytes 8-11
    and their high 2 bits on top of bytes 0-7.
    """
    scales, minimums, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = np.concatenate((scales & 63, (rest & 15) | (scales >> 6 << 4)), -1)
    minimum = np.concatenate((minimums & 63, (rest >> 4) | (minimums >> 6 << 4)), -1)
    both = np.stack((scale, minimum), -1)  # [panels, 16, blocks, 8, 2]
    return both.reshape(*both.shape[:2], -1, 2), np.stack((_half(blocks, 0), _half(blocks, 2)), -1)


def _q4_k(blocks: Bytes) -> Unpacked:
    """Unpack scales and minimums, and 128 bytes: of each 32, low nibbles are one group of 32, high ones the next."""
    return _nibbles(blocks, 16, 32), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> Unpacked:
    """Like Q4_K, with 32 bytes before the nibbles: bit g of byte i is the fifth bit of weight i of group g."""
    fifth = _by_group(_fields(_words(blocks[..., 16:48]), BIT, range(8)))
    return _nibbles(blocks, 48, 32) | fifth << np.uint32(4), *_k_scales(blocks)


def _q6_k(blocks: Bytes) -> Unpacked:
    """Unpack, per 128 weights, 64 nibble bytes (low, then high) and 32 bytes of bit pairs; 16 scales, a super-scale."""
    scales = blocks[..., 192:208].view(np.int8).reshape(*blocks.shape[:2], -1, 2)
    codes = _nibbles(blocks[..., :128], 0, 64) | _pairs(blocks[..., 128:192]) << np.uint32(4)
    return codes, scales, _half(blocks, 208)


def _pairs(blocks: Bytes) -> Words:
    """Return bit pairs, 32 bytes per 128 weights, whose four fields belong to the four groups."""
    words = _words(blocks)
    return _by_group(_fields(words.reshape(*words.shape[:-1], -1, QUADS), PAIR, range(0, 8, 2)))


def _q3_k(blocks: Bytes) -> Unpacked:
    """Unpack 32 bytes of third bits, 64 of bit pairs, 12 of 6-bit scales plus 32, and a super-scale.

    Bit g of byte i is the third bit of weight i of group g. Low nibbles of scales 0-7 and 8-15 share 8 bytes; four more
    have the high 2 bits of scales 0-3, 4-7, 8-11 and 12-15.
    """
    third = _by_group(_fields(_words(blocks[..., :32]), BIT, range(8)))
    codes = _pairs(blocks[..., 32:96]) | third << np.uint32(2)
    nibbles, pairs = blocks[..., 96:104], blocks[..., 104:108]
    low = np.concatenate((nibbles & 15, nibbles >> 4), -1)
    high = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return codes, scales.reshape(*blocks.shape[:2], -1, 2), _half(blocks, 108)


def _q2_k(blocks: Bytes) -> Unpacked:
    """Unpack 16 bytes of scales (low nibbles) and minimums, 64 of bit pairs, and two super-scales."""
    scales = blocks[..., :16].reshape(*blocks.shape[:2], -1, 2)
    return _pairs(blocks[..., 16:80]), scales, np.stack((_half(blocks, 80), _half(blocks, 82)), -1)


READERS: dict[GGMLType, Callable[[Bytes], Unpacked]] = {
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


def pack_rows(blocks: Bytes, ggml_type: GGMLType, kind: Kind | None = None) -> tuple[NDArray[Any], ...]:
    """Pack rows of a matrix, bytes [rows, row], into codes [panels, ...], scales and, if the format has any, supers.

    Rows are padded with zeros to whole panels. Raise ModelError if a scale is not finite.
    """
    blocks = np.pad(blocks, ((0, -len(blocks) % PANEL), (0, 0)))
    if ggml_type in SHRINKING and kind == Kind.Q4_0:
        blocks, ggml_type = _round_to_q4_0(SHRINKING[ggml_type](blocks)), GGMLType.Q4_0
    elif ggml_type in FLOATS:
        blocks, ggml_type = _round_to_q8_0(FLOATS[ggml_type](blocks)), GGMLType.Q8_0
    codes, *rest = READERS[ggml_type](blocks.reshape(len(blocks) // PANEL, PANEL, -1, ggml_type.block_bytes))
    if any(array.dtype == np.float16 and not np.isfinite(array).all() for array in rest) or (
        ggml_type == GGMLType.MXFP4 and (rest[0] == NOT_A_NUMBER).any()
    ):
        raise ModelError("a scale is not finite")
    planes = _planes(codes, LAYOUTS[KINDS[ggml_type]].planes)
    by_channel = [np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (planes, *rest)]
    return by_channel[0].view(np.uint8).reshape(len(planes), planes.shape[2], -1), *by_channel[1:]


def _round_to_q8_0(weights: Floats) -> Bytes:
    """Round float weights [rows, k] to Q8_0: scale = amax / 127 as float16, codes rounded half away from zero."""
    groups = weights.reshape(len(weights), -1, GROUP)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(all="ignore"):  # numbers that are not finite are refused later
        steps = groups * np.where(scale >= np.finfo(np.float32).tiny, 1 / scale, 0)  # smaller ones are 0 in float16
        codes = (steps + np.copysign(ALMOST_HALF, steps)).astype(np.int8)
        half = scale.astype(np.float16)
    return np.concatenate((half.view(np.uint8), codes.view(np.uint8)), -1).reshape(len(weights), -1)


def _round_to_q4_0(weights: Floats) -> Bytes:
    """Round float weights [rows, k] to Q4_0: the weight furthest from zero gets code -8, whatever its sign."""
    groups = weights.reshape(len(weights), -1, GROUP)
    furthest = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    scale = furthest / np.float32(-8)
    with np.errstate(all="ignore"):  # numbers that are not finite are refused later
        steps = groups * np.where(np.abs(scale) >= np.finfo(np.float32).tiny, 1 / scale, 0)
        codes = np.clip(steps + np.float32(8.5), 0, 15).astype(np.uint8)
        half = scale.astype(np.float16)
    packed = codes[..., : GROUP // 2] | codes[..., GROUP // 2 :] << 4
    return np.concatenate((half.view(np.uint8), packed), -1).reshape(len(weights), -1)


def _q8_0_floats(blocks: Bytes) -> Floats:
    parted = blocks.reshape(len(blocks), -1, GGMLType.Q8_0.block_bytes)
    scale = np.ascontiguousarray(parted[..., :2]).view(np.float16).astype(np.float32)
    return (parted[..., 2:].view(np.int8) * scale).reshape(len(blocks), -1)


# Readers of float types: bytes [..., row] -> float32.
FLOATS: dict[GGMLType, Callable[[Bytes], Floats]] = {
    GGMLType.F32: lambda raw: np.ascontiguousarray(raw).view(np.float32),
    GGMLType.F16: lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32),
    GGMLType.BF16: lambda raw: (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32),
}
SHRINKING = FLOATS | {GGMLType.Q8_0: _q8_0_floats}  # types that can be rounded to Q4_0
KINDS = {ggml_type: Kind[ggml_type.name] for ggml_type in READERS} | dict.fromkeys(FLOATS, Kind.Q8_0)


def _planes(codes: Words, bits: tuple[int, ...]) -> Words:
    """Cut codes [..., 8 quads], one per byte, into planes of `bits` bits, lowest first: [..., sum of bits]."""
    planes, below = [], 0
    for size in bits:
        plane = codes if len(bits) == 1 else codes >> np.uint32(below) & np.uint32(0x01010101 * (2**size - 1))
        shared = plane.reshape(*codes.shape[:-1], size, QUADS // size)  # quads of a word
        planes.append(shared[..., 0].copy())
        for position in range(1, QUADS // size):
            planes[-1] |= shared[..., position] << np.uint32(size * position)
        below += size
    return planes[0] if len(bits) == 1 else np.concatenate(planes, -1)


def select_rows(head: PackedMatrix, ids: NDArray[np.int32]) -> PackedMatrix:
    """Copy rows `ids` of a packed matrix, for a drafter with a short vocabulary; the last row pads the last panel."""
    padded = np.pad(ids, (0, -len(ids) % PANEL), mode="edge")
    arrays = [array for array in (head.codes.view(np.uint32), head.scales, head.supers) if array is not None]
    codes, *rest = (_select_channels(array, padded) for array in arrays)
    return PackedMatrix(head.kind, len(ids), head.k, 1, codes.view(np.uint8), *rest)


def _select_channels(packed: NDArray[Any], ids: NDArray[np.int32]) -> NDArray[Any]:
    """Copy channels `ids` of an array [1, panels, ..., 16 * n]; neighbouring items are of neighbouring channels."""
    panels = packed.reshape(packed.shape[1], -1, PANEL)
    rows = panels[ids // PANEL, :, ids % PANEL].reshape(len(ids) // PANEL, PANEL, -1)
    chosen = allocate_aligned((1, len(rows), *packed.shape[2:]), packed.dtype)
    chosen.reshape(len(rows), -1, PANEL)[...] = rows.swapaxes(1, 2)
    return chosen
