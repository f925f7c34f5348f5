"""Matrices as the CPU kernels read them, packed from ggml's blocks; layouts in kernels/cpu/formats.h.

Quantized types keep the numbers of the file exactly. Float matrices (F32, F16, BF16) are rounded to Q8_0 as ggml does
it; those of a drafter, and its Q8_0, to Q4_0 where that is asked for. Needs numpy only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localdflash.backends.cpu.unpack_ggml import QUADS, READERS, Bytes, Words, read
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType

PANEL, GROUP, SUPER = 16, 32, 256  # channels of a panel, inputs of a scale, inputs of a super-scale
ALMOST_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # a half would take what is just below 0.5 up to 1
NOT_A_NUMBER = 255  # as an exponent of MXFP4


class Kind(IntEnum):
    """A packed format; the numbers are those of formats.h."""

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
    """Bits of the planes of codes; the type and parts of a group's scales; the inputs and parts of supers, if any."""

    planes: tuple[int, ...]
    scales: tuple[DTypeLike, tuple[int, ...]]
    supers: tuple[int, tuple[int, ...]] | None = None

    @property
    def code_bytes(self) -> int:
        """Bytes of codes of a panel's group."""
        return 4 * PANEL * sum(self.planes)


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
FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
KINDS = {ggml_type: Kind[ggml_type.name] for ggml_type in READERS} | dict.fromkeys(FLOAT_TYPES, Kind.Q8_0)
SHRINKING = frozenset((*FLOAT_TYPES, GGMLType.Q8_0))  # types that can be rounded to Q4_0


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
        layout, lead = LAYOUTS[self.kind], (self.experts, -(-self.n // PANEL))
        groups, (dtype, parts) = (*lead, self.k // GROUP), layout.scales
        arrays = Array(np.uint8, (*groups, layout.code_bytes)), Array(dtype, (*groups, *parts, PANEL))
        if layout.supers is None:
            return arrays
        inputs, parts = layout.supers
        return *arrays, Array(np.float16, (*lead, self.k // inputs, *parts, PANEL))


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in memory; panels = n / 16 rounded up, groups = k / 32."""

    kind: Kind
    n: int
    k: int
    experts: int
    codes: Bytes  # these three as `MatrixShape.arrays` has them
    scales: NDArray[Any]
    supers: NDArray[np.float16] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.supers is None else self.supers.nbytes)


def pack_rows(blocks: Bytes, ggml_type: GGMLType, kind: Kind | None = None) -> tuple[NDArray[Any], ...]:
    """Pack some rows of a matrix, bytes [rows, row]: codes [panels, ...], scales and, if there are any, supers.

    Rows are padded with weights of zero to whole panels. `kind` is that of `KINDS`, or Q4_0 for a type that shrinks.
    ModelError if a scale is not finite.
    """
    blocks = _whole_panels(blocks)
    if ggml_type in SHRINKING and kind == Kind.Q4_0:
        weights = FLOATS[ggml_type](blocks) if ggml_type in FLOATS else _q8_0_floats(blocks)
        blocks, ggml_type = _four_bits(weights), GGMLType.Q4_0
    elif ggml_type in FLOATS:
        blocks, ggml_type = _rounded(FLOATS[ggml_type](blocks)), GGMLType.Q8_0
    codes, *rest = read(blocks.reshape(len(blocks) // PANEL, PANEL, -1, ggml_type.block_bytes), ggml_type)
    if any(array.dtype == np.float16 and not np.isfinite(array).all() for array in rest) or (
        ggml_type == GGMLType.MXFP4 and (rest[0] == NOT_A_NUMBER).any()
    ):
        raise ModelError("a scale is not a finite number")
    planes = _planes(codes, LAYOUTS[KINDS[ggml_type]].planes)
    return _by_quad(planes), *map(_by_channel, rest)


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


def _four_bits(weights: NDArray[np.float32]) -> Bytes:
    """Q4_0 blocks of float weights [rows, k]: the one furthest from zero becomes -8, whatever its sign."""
    groups = weights.reshape(len(weights), -1, GROUP)
    furthest = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    scale = furthest / np.float32(-8)
    with np.errstate(all="ignore"):  # not finite: refused later
        steps = groups * np.where(np.abs(scale) >= np.finfo(np.float32).tiny, 1 / scale, 0)
        codes = np.clip(steps + np.float32(8.5), 0, 15).astype(np.uint8)
        half = scale.astype(np.float16)
    packed = codes[..., : GROUP // 2] | codes[..., GROUP // 2 :] << 4
    return np.concatenate((half.view(np.uint8), packed), -1).reshape(len(weights), -1)


def _q8_0_floats(blocks: Bytes) -> NDArray[np.float32]:
    parted = blocks.reshape(len(blocks), -1, GGMLType.Q8_0.block_bytes)
    scale = np.ascontiguousarray(parted[..., :2]).view(np.float16).astype(np.float32)
    return (parted[..., 2:].view(np.int8) * scale).reshape(len(blocks), -1)


def _bfloat16(raw: Bytes) -> NDArray[np.float32]:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


FLOATS: dict[GGMLType, Callable[[Bytes], NDArray[np.float32]]] = {
    GGMLType.F32: lambda raw: np.ascontiguousarray(raw).view(np.float32),
    GGMLType.F16: lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32),
    GGMLType.BF16: _bfloat16,
}


def _planes(codes: Words, bits: tuple[int, ...]) -> Words:
    """Codes [..., 8 quads], a byte each, cut into planes of so many bits, the lowest first: [..., sum of bits]."""
    planes, below = [], 0
    for size in bits:
        plane = codes if len(bits) == 1 else codes >> np.uint32(below) & np.uint32(0x01010101 * (2**size - 1))
        shared = plane.reshape(*codes.shape[:-1], size, QUADS // size)  # quads of a word
        planes.append(shared[..., 0].copy())
        for place in range(1, QUADS // size):
            planes[-1] |= shared[..., place] << np.uint32(size * place)
        below += size
    return planes[0] if len(bits) == 1 else np.concatenate(planes, -1)


def _by_quad(words: Words) -> Bytes:
    """[panels, 16, groups, words] -> [panels, groups, words * 64]: the channels of a quad side by side."""
    return np.ascontiguousarray(np.moveaxis(words, 1, -1)).view(np.uint8).reshape(len(words), words.shape[2], -1)


def _by_channel(numbers: NDArray[Any]) -> NDArray[Any]:
    """[panels, 16, ...] -> [panels, ..., 16]."""
    return np.ascontiguousarray(np.moveaxis(numbers, 1, -1))
