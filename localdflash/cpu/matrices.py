"""Matrices as the CPU kernels read them, packed from ggml's blocks; layouts in kernels/cpu/formats.h.

Q8_0, Q4_0, Q4_1, Q4_K and Q6_K keep the numbers of the file exactly. Float matrices (F32, F16, BF16) are rounded to
Q8_0 as ggml does it. Needs numpy only. Layouts of blocks: ggml-common.h.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localdflash.errors import ModelError
from localdflash.weights.ggml_types import GGMLType

PANEL, GROUP, SUPER = 16, 32, 256  # channels of a panel, inputs of a scale, inputs of a super-scale
LOW, HIGH = np.uint32(0x0F0F0F0F), np.uint32(0xF0F0F0F0)  # the nibbles of four bytes
PAIR = np.uint32(0x03030303)  # their lowest two bits
FOUR = np.uint32(4)
ALMOST_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # a half would take what is just below 0.5 up to 1

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]


class Kind(IntEnum):
    """A packed format; the numbers are those of formats.h."""

    Q8_0 = 0
    Q4_0 = 1
    Q4_K = 2
    Q6_K = 3
    Q4_1 = 4


KINDS = {
    GGMLType.Q8_0: Kind.Q8_0,
    GGMLType.Q4_0: Kind.Q4_0,
    GGMLType.Q4_1: Kind.Q4_1,
    GGMLType.Q4_K: Kind.Q4_K,
    GGMLType.Q6_K: Kind.Q6_K,
    GGMLType.F32: Kind.Q8_0,
    GGMLType.F16: Kind.Q8_0,
    GGMLType.BF16: Kind.Q8_0,
}


class Array(NamedTuple):
    """The type and shape of an array."""

    dtype: DTypeLike
    shape: tuple[int, ...]


@dataclass(frozen=True)
class MatrixShape:
    """A matrix [n, k], or `experts` of them one after the other, each padded to whole panels."""

    kind: Kind
    n: int
    k: int
    experts: int = 1

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Codes, scales and supers if there are any: what `pack_rows` returns, for every expert."""
        lead = (self.experts, -(-self.n // PANEL))
        groups, supers = (*lead, self.k // GROUP), (*lead, self.k // SUPER)
        match self.kind:
            case Kind.Q8_0:
                return Array(np.uint8, (*groups, 512)), Array(np.float16, (*groups, PANEL))
            case Kind.Q4_0:
                return Array(np.uint8, (*groups, 256)), Array(np.float16, (*groups, PANEL))
            case Kind.Q4_1:
                scales = Array(np.float16, (*groups, PANEL))
                return Array(np.uint8, (*groups, 256)), scales, scales
            case Kind.Q4_K:
                scales, halves = Array(np.uint8, (*groups, 2, PANEL)), Array(np.float16, (*supers, 2, PANEL))
                return Array(np.uint8, (*groups, 256)), scales, halves
            case Kind.Q6_K:
                scales, halves = Array(np.int8, (*groups, 2, PANEL)), Array(np.float16, (*supers, PANEL))
                return Array(np.uint8, (*groups, 512)), scales, halves


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in memory; panels = n / 16 rounded up, groups = k / 32."""

    kind: Kind
    n: int
    k: int
    experts: int
    codes: Bytes  # [experts, panels, groups, 512 or 256]
    scales: NDArray[Any]  # [experts, panels, groups, 16] float16; Q4_K and Q6_K: [..., groups, 2, 16] uint8 and int8
    # Q4_K: [experts, panels, k / 256, 2, 16]; Q6_K: [..., k / 256, 16]; Q4_1: what is added, [..., groups, 16]
    supers: NDArray[np.float16] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.supers is None else self.supers.nbytes)


def pack_rows(blocks: Bytes, ggml_type: GGMLType) -> tuple[NDArray[Any], ...]:
    """Pack some rows of a matrix, bytes [rows, row]: codes [panels, ...], scales and, if there are any, supers.

    Rows are padded with weights of zero to whole panels. ModelError if a scale is not finite.
    """
    blocks = _whole_panels(blocks)
    if ggml_type in FLOATS:
        blocks, ggml_type = _rounded(FLOATS[ggml_type](blocks)), GGMLType.Q8_0
    arrays = PACKERS[ggml_type](blocks.reshape(len(blocks) // PANEL, PANEL, -1, ggml_type.block_bytes))
    if not all(np.isfinite(array).all() for array in arrays):
        raise ModelError("a scale is not a finite number")
    return arrays


def floats_of(raw: Bytes, ggml_type: GGMLType) -> NDArray[np.float32]:
    """Numbers of an unquantized type, bytes [..., row], as float32."""
    return FLOATS[ggml_type](raw)


def _whole_panels(blocks: Bytes) -> Bytes:
    missing = -len(blocks) % PANEL
    return np.concatenate((blocks, np.zeros((missing, blocks.shape[1]), np.uint8))) if missing else blocks


def _rounded(weights: NDArray[np.float32]) -> Bytes:
    """Q8_0 blocks of float weights [rows, k]: scale = amax / 127 as float16, codes rounded half away from zero."""
    groups = weights.reshape(len(weights), -1, GROUP)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(all="ignore"):  # not finite: refused later
        steps = groups * np.where(scale >= np.finfo(np.float32).tiny, 1 / scale, 0)  # smaller ones are 0 in float16
        codes = (steps + np.copysign(ALMOST_HALF, steps)).astype(np.int8)
        half = scale.astype(np.float16)
    return np.concatenate((half.view(np.uint8), codes.view(np.uint8)), -1).reshape(len(weights), -1)


def _bfloat16(raw: Bytes) -> NDArray[np.float32]:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


FLOATS: dict[GGMLType, Callable[[Bytes], NDArray[np.float32]]] = {
    GGMLType.F32: lambda raw: np.ascontiguousarray(raw).view(np.float32),
    GGMLType.F16: lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32),
    GGMLType.BF16: _bfloat16,
}


# The packers take blocks [panels, 16 channels, blocks, bytes]. A word is a quad: four inputs of a channel, a byte each.


def _words(blocks: Bytes) -> Words:
    """Bytes [..., size] as words [..., size / 4]; the copy aligns them, which makes what follows twice as fast."""
    return np.ascontiguousarray(blocks).view(np.uint32)


def _by_quad(words: Words) -> Bytes:
    """[panels, 16, groups..., quads] -> [panels, groups, quads * 64]: the channels of a quad side by side."""
    panels, quads = len(words), words.shape[-1]
    turned = np.moveaxis(words.reshape(panels, PANEL, -1, quads), 1, -1)
    return np.ascontiguousarray(turned).view(np.uint8).reshape(panels, -1, quads * 4 * PANEL)


def _by_channel(numbers: NDArray[Any]) -> NDArray[Any]:
    """[panels, 16, ...] -> [panels, ..., 16]."""
    return np.ascontiguousarray(np.moveaxis(numbers, 1, -1))


def _halves(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """The float16 at byte `start` of every block: [panels, 16, blocks]."""
    return blocks[..., start : start + 2].view(np.float16)[..., 0]


def _nibbles(words: Words) -> tuple[Words, Words]:
    """The low and the high nibbles of words [..., 2 * pairs], two quads together again: [..., pairs] each."""
    even, odd = words[..., 0::2], words[..., 1::2]
    return (even & LOW) | ((odd & LOW) << FOUR), ((even & HIGH) >> FOUR) | (odd & HIGH)


def _q8_0(blocks: Bytes) -> tuple[NDArray[Any], ...]:
    """A scale and 32 signed codes, which a flipped sign bit offsets by 128."""
    codes = _by_quad(blocks[..., 2:].view(np.uint32))
    codes ^= 0x80
    return codes, _by_channel(_halves(blocks, 0))


def _q4_0(blocks: Bytes) -> tuple[NDArray[Any], ...]:
    """A scale and 16 bytes: low nibbles are weights 0-15, high ones 16-31."""
    codes = np.concatenate(_nibbles(_words(blocks[..., 2:])), -1)
    return _by_quad(codes), _by_channel(_halves(blocks, 0))


def _q4_1(blocks: Bytes) -> tuple[NDArray[Any], ...]:
    """As Q4_0, with what is added to every weight beside the scale."""
    codes = np.concatenate(_nibbles(_words(blocks[..., 4:])), -1)
    return _by_quad(codes), _by_channel(_halves(blocks, 0)), _by_channel(_halves(blocks, 2))


def _q4_k(blocks: Bytes) -> tuple[NDArray[Any], ...]:
    """Two super-scales, scales and minimums, and 128 bytes: of 32, low nibbles are one group of 32, high ones the next.

    Eight pairs of 6 bits in 12 bytes: pairs 0-3 in the low 6 bits of bytes 0-3 (scales) and 4-7 (minimums); pairs 4-7
    have their low 4 bits in bytes 8-11 and their high 2 bits on top of bytes 0-7.
    """
    words = _words(blocks[..., 16:])
    codes = np.stack(_nibbles(words.reshape(*words.shape[:-1], 4, 8)), -2)  # [panels, 16, blocks, 4, 2 groups, pairs]
    scales, minimums, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = np.concatenate((scales & 63, (rest & 15) | (scales >> 6 << 4)), -1)
    minimum = np.concatenate((minimums & 63, (rest >> 4) | (minimums >> 6 << 4)), -1)
    both = np.stack((scale, minimum), -1)  # [panels, 16, blocks, 8, 2]
    supers = np.stack((_halves(blocks, 0), _halves(blocks, 2)), -1)
    return _by_quad(codes), _by_channel(both.reshape(*both.shape[:2], -1, 2)), _by_channel(supers)


def _q6_k(blocks: Bytes) -> tuple[NDArray[Any], ...]:
    """128 bytes of nibbles, 64 of bit pairs, 16 signed scales and a super-scale.

    Each half of 128 weights has 64 nibble bytes (first all low, then all high nibbles) and 32 bytes of bit pairs, whose
    four fields top up the four groups of 32 weights.
    """
    lead = blocks.shape[:-1]
    nibbles = _words(blocks[..., :128]).reshape(*lead, 2, 2, 8)
    pairs = _words(blocks[..., 128:192]).reshape(*lead, 2, 8)
    codes = np.empty((*lead, 2, 4, 8), np.uint32)  # [panels, 16, blocks, half, group, quad]
    for group in range(4):
        low = (nibbles[..., group % 2, :] >> (group // 2 * 4)) & LOW
        codes[..., group, :] = low | (((pairs >> (2 * group)) & PAIR) << 4)
    scales = blocks[..., 192:208].view(np.int8).reshape(*lead[:2], -1, 2)
    return _by_quad(codes), _by_channel(scales), _by_channel(_halves(blocks, 208))


PACKERS: dict[GGMLType, Callable[[Bytes], tuple[NDArray[Any], ...]]] = {
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q6_K: _q6_k,
}
