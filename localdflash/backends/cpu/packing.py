"""Packs ggml blocks into the layout that the CPU kernels read; see kernels/cpu/formats.h.

Float matrices are rounded to Q8_0 as ggml does. A 4-bit drafter's float and Q8_0 matrices are rounded to Q4_0. All
other types are packed without rounding. A channel is a row of a weight matrix [n, k]: one output, with k inputs.
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
Unpacked = tuple[Words, NDArray[Any]] | tuple[Words, NDArray[Any], NDArray[Any]]  # codes, scales, supers

PANEL, GROUP, SUPER = 16, 32, 256  # channels of a panel, inputs that share a scale, inputs that share a super-scale
QUADS = 8  # words in a group of 32 inputs; a word holds the codes of four inputs, a quad
LOW_1, LOW_2, LOW_4 = (np.uint32(0x01010101 * mask) for mask in (1, 3, 15))  # the lowest 1, 2 or 4 bits of each byte
SPREAD = np.uint32(1 | 1 << 7 | 1 << 14 | 1 << 21)  # factor that moves each of four bits into its own byte
ALMOST_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # 0.5 would round numbers just below 0.5 up to 1
MXFP4_NAN_EXPONENT = 255


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
    """Arrays of a packed format, per channel."""

    planes: tuple[int, ...]  # bits of each plane of the codes, the lowest bits first
    scales: tuple[DTypeLike, tuple[int, ...]]  # type and shape of a group's scales
    supers: tuple[int, tuple[int, ...]] | None = None  # see `PackedMatrix`: inputs that share an entry, its shape


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


class ArraySpec(NamedTuple):
    """Element type and shape of an array."""

    dtype: DTypeLike
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.dtype(self.dtype).itemsize * prod(self.shape))


@dataclass(frozen=True)
class MatrixShape:
    """Shape of a packed matrix [n, k], or of `experts` matrices [n, k] in sequence, each padded to whole panels."""

    kind: Kind
    n: int
    k: int
    experts: int = 1

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """Shapes of the arrays of `PackedMatrix`: codes, scales and, if the format has any, supers."""
        layout, lead = LAYOUTS[self.kind], (self.experts, -(-self.n // PANEL))
        groups, (dtype, parts) = (*lead, self.k // GROUP), layout.scales
        codes, scales = (*groups, 4 * PANEL * sum(layout.planes)), (*groups, *parts, PANEL)
        arrays = ArraySpec(np.uint8, codes), ArraySpec(dtype, scales)
        if layout.supers is None:
            return arrays
        inputs, parts = layout.supers
        return *arrays, ArraySpec(np.float16, (*lead, self.k // inputs, *parts, PANEL))

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True)
class PackedMatrix:
    """Packed matrices of shape `MatrixShape`: arrays [experts, n / 16 panels, rounded up, ...]."""

    kind: Kind
    n: int
    k: int
    experts: int
    codes: Bytes
    scales: NDArray[Any]  # by group
    supers: NDArray[np.float16] | None = None  # minimums of Q4_1 and Q5_1, else super-scales: d, or d and dmin

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.supers is None else self.supers.nbytes)


# Unpackers of ggml blocks [panels, 16 channels, blocks, bytes]. Docstrings list the fields of a block in their order
# (see ggml-common.h). Each returns codes as words [panels, 16, groups, 8 quads], one byte per input; scales [panels,
# 16, groups, ...]; and, for formats that have them, supers [panels, 16, ...].


def _words(blocks: Bytes) -> Words:
    """Copy bytes [..., size] to aligned words [..., size / 4]; the alignment doubles the speed of unpacking."""
    return np.ascontiguousarray(blocks).view(np.uint32)


def _half(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """Return the float16 at byte `start` of every block: [panels, 16, blocks]."""
    return blocks[..., start : start + 2].view(np.float16)[..., 0]


def _fields(words: Words, mask: np.uint32, shifts: range) -> Words:
    """Shift words [..., n] right by each of `shifts` and mask them: [..., shifts, n]."""
    return np.stack([(words >> np.uint32(shift)) & mask for shift in shifts], -2)


def _by_group(codes: Words) -> Words:
    """Reshape codes [panels, 16, blocks, ...] to [panels, 16, groups, quads]."""
    return codes.reshape(*codes.shape[:2], -1, QUADS)


def _nibbles(blocks: Bytes, start: int, run: int = 16) -> Words:
    """Return the nibbles from byte `start` on: for every `run` bytes, all low nibbles, then all high nibbles."""
    words = _words(blocks[..., start:])
    return _by_group(_fields(words.reshape(*words.shape[:-1], -1, run // 4), LOW_4, range(0, 8, 4)))


def _q8_0(blocks: Bytes) -> Unpacked:
    """Unpack Q8_0. Block: float16 scale, 32 int8 codes; flipping the sign bit adds 128 and makes codes unsigned."""
    return _words(blocks[..., 2:]) ^ np.uint32(0x80808080), _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Unpacked:
    """Unpack Q4_0 or IQ4_NL. Block: float16 scale, 16 bytes (low nibbles: weights 0-15, high nibbles: 16-31)."""
    return _nibbles(blocks, 2), _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Unpacked:
    """Unpack Q4_1. Block: float16 scale, float16 minimum (added to every weight), nibbles as in Q4_0."""
    return _nibbles(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _fifth_bits(blocks: Bytes, start: int) -> Words:
    """Return eight words per block with bit 4 of the codes; bit i of the block's four bytes belongs to weight i."""
    bits = _words(blocks[..., start : start + 4]) >> np.arange(0, 32, 4, dtype=np.uint32)
    return ((bits & np.uint32(15)) * SPREAD & LOW_1) << np.uint32(4)


def _q5_0(blocks: Bytes) -> Unpacked:
    """Unpack Q5_0. Block: float16 scale, 32 fifth bits, nibbles as in Q4_0."""
    return _nibbles(blocks, 6) | _fifth_bits(blocks, 2), _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Unpacked:
    """Unpack Q5_1. Block: float16 scale, float16 minimum, 32 fifth bits, nibbles as in Q4_0."""
    return _nibbles(blocks, 8) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _mxfp4(blocks: Bytes) -> Unpacked:
    """Unpack MXFP4. Block: a byte (scale, as the exponent of a power of two), nibbles as in Q4_0."""
    return _nibbles(blocks, 1), blocks[..., 0]


def _iq4_xs(blocks: Bytes) -> Unpacked:
    """Unpack IQ4_XS. Block: d, high 2 bits and low 4 bits of eight scales with an offset of 32, nibbles as in Q4_0."""
    high = _words(blocks[..., :4])[..., 0:1] >> np.arange(16, 32, 2, dtype=np.uint32)
    low = np.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).reshape(*blocks.shape[:-1], 8)
    scales = (low | (high.astype(np.uint8) & 3) << 4).view(np.int8) - np.int8(32)
    return _nibbles(blocks, 8), scales.reshape(*scales.shape[:2], -1), _half(blocks, 0)


def _k_scales(blocks: Bytes) -> tuple[Bytes, NDArray[np.float16]]:
    """Return Q4_K's and Q5_K's scale and minimum [panels, 16, groups, 2], and d and dmin [panels, 16, blocks, 2].

    After d and dmin come 12 bytes. Groups 0-3: low 6 bits of bytes 0-3 (scales) and 4-7 (minimums). Groups 4-7: low 4
    bits in the nibbles of bytes 8-11 (low: scales, high: minimums), high 2 bits on top of bytes 0-7.
    """
    scales, minimums, later = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = np.concatenate((scales & 63, (later & 15) | (scales >> 6 << 4)), -1)
    minimum = np.concatenate((minimums & 63, (later >> 4) | (minimums >> 6 << 4)), -1)
    both = np.stack((scale, minimum), -1)  # [panels, 16, blocks, 8, 2]
    return both.reshape(*both.shape[:2], -1, 2), np.stack((_half(blocks, 0), _half(blocks, 2)), -1)


def _q4_k(blocks: Bytes) -> Unpacked:
    """Unpack Q4_K. Block: `_k_scales`, 128 bytes; low nibbles of each 32 are one group, high nibbles the next."""
    return _nibbles(blocks, 16, 32), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> Unpacked:
    """Unpack Q5_K: Q4_K with 32 bytes before the nibbles; bit g of byte i is the fifth bit of weight i of group g."""
    fifth = _by_group(_fields(_words(blocks[..., 16:48]), LOW_1, range(8)))
    return _nibbles(blocks, 48, 32) | fifth << np.uint32(4), *_k_scales(blocks)


def _q6_k(blocks: Bytes) -> Unpacked:
    """Unpack Q6_K. Block of 256 weights: 128 bytes of nibbles, 64 bytes of high 2 bits, 16 int8 scales, d."""
    scales = blocks[..., 192:208].view(np.int8).reshape(*blocks.shape[:2], -1, 2)
    codes = _nibbles(blocks[..., :128], 0, 64) | _two_bits(blocks[..., 128:192]) << np.uint32(4)
    return codes, scales, _half(blocks, 208)


def _two_bits(blocks: Bytes) -> Words:
    """Return two-bit fields: each 32 bytes hold four groups, byte i the fields of weight i of each, lowest first."""
    words = _words(blocks)
    return _by_group(_fields(words.reshape(*words.shape[:-1], -1, QUADS), LOW_2, range(0, 8, 2)))


def _q3_k(blocks: Bytes) -> Unpacked:
    """Unpack Q3_K. Block: 32 bytes of third bits, 64 of low 2 bits, 12 of 6-bit scales with an offset of 32, d.

    Bit g of byte i is the third bit of weight i of group g. The first 8 bytes of scales hold the low 4 bits of scales
    0-7 (low nibbles) and 8-15 (high nibbles), the last 4 the high 2 bits of scales 0-3, 4-7, 8-11 and 12-15.
    """
    third = _by_group(_fields(_words(blocks[..., :32]), LOW_1, range(8)))
    codes = _two_bits(blocks[..., 32:96]) | third << np.uint32(2)
    nibbles, top = blocks[..., 96:104], blocks[..., 104:108]
    low = np.concatenate((nibbles & 15, nibbles >> 4), -1)
    high = np.concatenate([top >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return codes, scales.reshape(*blocks.shape[:2], -1, 2), _half(blocks, 108)


def _q2_k(blocks: Bytes) -> Unpacked:
    """Unpack Q2_K. Block: 16 bytes of scales (low nibbles) and minimums (high nibbles), 64 of 2-bit codes, d, dmin."""
    scales = blocks[..., :16].reshape(*blocks.shape[:2], -1, 2)
    return _two_bits(blocks[..., 16:80]), scales, np.stack((_half(blocks, 80), _half(blocks, 82)), -1)


UNPACKERS: dict[GGMLType, Callable[[Bytes], Unpacked]] = {
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


def pack_rows(blocks: Bytes, ggml_type: GGMLType, to_q4_0: bool = False) -> tuple[NDArray[Any], ...]:
    """Pack rows [rows, row_bytes] into codes [panels, ...], scales and, if the format has any, supers.

    Pad with zeros to whole panels. `to_q4_0` affects float and Q8_0 rows only. ModelError if a scale is not finite.
    """
    blocks = np.pad(blocks, ((0, -len(blocks) % PANEL), (0, 0)))
    if to_q4_0 and ggml_type in ROUNDABLE_TO_Q4_0:
        blocks, ggml_type = _round_to_q4_0(ROUNDABLE_TO_Q4_0[ggml_type](blocks)), GGMLType.Q4_0
    elif ggml_type in FLOAT_READERS:
        blocks, ggml_type = _round_to_q8_0(FLOAT_READERS[ggml_type](blocks)), GGMLType.Q8_0
    codes, *scales = UNPACKERS[ggml_type](blocks.reshape(len(blocks) // PANEL, PANEL, -1, ggml_type.block_bytes))
    if any(array.dtype == np.float16 and not np.isfinite(array).all() for array in scales) or (
        ggml_type == GGMLType.MXFP4 and (scales[0] == MXFP4_NAN_EXPONENT).any()
    ):
        raise ModelError("a scale is not finite")
    planes = _split_planes(codes, LAYOUTS[KINDS[ggml_type]].planes)
    by_channel = [np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (planes, *scales)]
    return by_channel[0].view(np.uint8).reshape(len(planes), planes.shape[2], -1), *by_channel[1:]


def _round_to_q8_0(weights: Floats) -> Bytes:
    """Round float weights [rows, k] to Q8_0: scale = amax / 127 as float16, codes rounded half away from zero."""
    groups = weights.reshape(len(weights), -1, GROUP)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(all="ignore"):  # `pack_rows` rejects scales that are not finite
        steps = groups * np.where(scale >= np.finfo(np.float32).tiny, 1 / scale, 0)  # float16 scales below `tiny` are 0
        codes = (steps + np.copysign(ALMOST_HALF, steps)).astype(np.int8)
        half = scale.astype(np.float16)
    return np.concatenate((half.view(np.uint8), codes.view(np.uint8)), -1).reshape(len(weights), -1)


def _round_to_q4_0(weights: Floats) -> Bytes:
    """Round float weights [rows, k] to Q4_0: the weight furthest from zero gets code -8, whatever its sign."""
    groups = weights.reshape(len(weights), -1, GROUP)
    furthest = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    scale = furthest / np.float32(-8)
    with np.errstate(all="ignore"):  # as in `_round_to_q8_0`
        steps = groups * np.where(np.abs(scale) >= np.finfo(np.float32).tiny, 1 / scale, 0)
        codes = np.clip(steps + np.float32(8.5), 0, 15).astype(np.uint8)
        half = scale.astype(np.float16)
    packed = codes[..., : GROUP // 2] | codes[..., GROUP // 2 :] << 4
    return np.concatenate((half.view(np.uint8), packed), -1).reshape(len(weights), -1)


def _read_q8_0(blocks: Bytes) -> Floats:
    by_block = blocks.reshape(len(blocks), -1, GGMLType.Q8_0.block_bytes)
    scale = np.ascontiguousarray(by_block[..., :2]).view(np.float16).astype(np.float32)
    return (by_block[..., 2:].view(np.int8) * scale).reshape(len(blocks), -1)


# Readers of float types: bytes [..., row_bytes] -> float32 [..., k].
FLOAT_READERS: dict[GGMLType, Callable[[Bytes], Floats]] = {
    GGMLType.F32: lambda raw: np.ascontiguousarray(raw).view(np.float32),
    GGMLType.F16: lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32),
    GGMLType.BF16: lambda raw: (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32),
}
ROUNDABLE_TO_Q4_0 = FLOAT_READERS | {GGMLType.Q8_0: _read_q8_0}
KINDS = {ggml_type: Kind[ggml_type.name] for ggml_type in UNPACKERS} | dict.fromkeys(FLOAT_READERS, Kind.Q8_0)
KINDS_4_BIT = KINDS | dict.fromkeys(ROUNDABLE_TO_Q4_0, Kind.Q4_0)  # for a 4-bit drafter


def _split_planes(codes: Words, bits: tuple[int, ...]) -> Words:
    """Cut codes [..., 8 quads], one per byte, into planes of `bits` bits, lowest first: [..., sum(bits) words]."""
    planes, below = [], 0
    for size in bits:
        plane = codes if len(bits) == 1 else codes >> np.uint32(below) & np.uint32(0x01010101 * (2**size - 1))
        shared = plane.reshape(*codes.shape[:-1], size, QUADS // size)  # [..., words, quads that share a word]
        planes.append(shared[..., 0].copy())
        for position in range(1, QUADS // size):
            planes[-1] |= shared[..., position] << np.uint32(size * position)
        below += size
    return planes[0] if len(bits) == 1 else np.concatenate(planes, -1)


def select_rows(head: PackedMatrix, ids: NDArray[np.int32]) -> PackedMatrix:
    """Copy rows `ids` of an LM head, for a reduced vocabulary; copies of the last row pad the last panel."""
    padded = np.pad(ids, (0, -len(ids) % PANEL), mode="edge")
    arrays = [array for array in (head.codes.view(np.uint32), head.scales, head.supers) if array is not None]
    codes, *scales = (_select_channels(array, padded) for array in arrays)
    return PackedMatrix(head.kind, len(ids), head.k, 1, codes.view(np.uint8), *scales)


def _select_channels(packed: NDArray[Any], ids: NDArray[np.int32]) -> NDArray[Any]:
    """Copy channels `ids` of an array [1, panels, ..., 16 * m], in which the channels of a panel vary fastest."""
    panels = packed.reshape(packed.shape[1], -1, PANEL)
    rows = panels[ids // PANEL, :, ids % PANEL].reshape(len(ids) // PANEL, PANEL, -1)
    selected = allocate_aligned((1, len(rows), *packed.shape[2:]), packed.dtype)
    selected.reshape(len(rows), -1, PANEL)[...] = rows.swapaxes(1, 2)
    return selected
