"""Packed matrices, read back weight by weight as formats.h describes them, against gguf's dequantizer: equal bits."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localdflash.backends.cpu.packing import KINDS, Kind, MatrixShape, PackedMatrix, pack_rows, select_rows
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import QUANTIZED, SCALES, Bytes, dequantized, random_blocks, unpacked

FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def packed(kind: GGMLType, raw: Bytes, k: int, becomes: Kind | None = None) -> PackedMatrix:
    arrays = [array[np.newaxis] for array in pack_rows(raw, kind, becomes)]
    shape = MatrixShape(becomes or KINDS[kind], len(raw), k)
    for array, (dtype, sizes) in zip(arrays, shape.arrays, strict=True):
        assert array.dtype == dtype
        assert array.shape == sizes
        assert array.flags.c_contiguous
    matrix = PackedMatrix(shape.kind, len(raw), k, 1, *arrays)
    assert matrix.nbytes == shape.nbytes
    return matrix


@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_numbers_of_the_file_are_kept_exactly(kind: GGMLType) -> None:
    for n, any_scale in ((33, True), (1, False), (16, False)):
        raw = random_blocks(np.random.default_rng(n), kind, (n, 1024), any_scale=any_scale)
        before, matrix = raw.copy(), packed(kind, raw, 1024)
        with np.errstate(over="ignore"):  # the largest exponents of MXFP4
            np.testing.assert_array_equal(unpacked(matrix)[0], dequantized(kind, raw))
        np.testing.assert_array_equal(raw, before)
    assert matrix.nbytes <= 1.05 * raw.nbytes or kind == GGMLType.Q6_K  # which takes a byte for each code

    raw = random_blocks(np.random.default_rng(0), kind, (17, 256))
    arrays = [array[np.newaxis] for array in pack_rows(raw, kind)]
    weights = unpacked(PackedMatrix(KINDS[kind], 32, 256, 1, *arrays))[0]
    assert weights[:17].any(1).all()
    assert not weights[17:].any()  # padding


def test_codes_of_six_bits_stay_below_64() -> None:
    codes, *_ = pack_rows(np.full((16, 210), 0x3F, np.uint8), GGMLType.Q6_K)
    assert codes.max() < 64


def raw_floats(kind: GGMLType, values: NDArray[np.float32]) -> Bytes:
    if kind == GGMLType.BF16:
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float32 if kind == GGMLType.F32 else np.float16).view(np.uint8)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from((*FLOATS, GGMLType.Q8_0)),
    becomes=st.sampled_from([Kind.Q8_0, Kind.Q4_0]),
    n=st.integers(1, 20),
    groups=st.integers(1, 4),
    size=st.sampled_from([1e-30, 1e-6, 0.02, 1.0, 900.0]),
    seed=st.integers(0, 999),
)
def test_float_weights_are_rounded_as_gguf_does(
    kind: GGMLType, becomes: Kind, n: int, groups: int, size: float, seed: int
) -> None:
    values = (np.random.default_rng(seed).standard_normal((n, groups * 32)) * size).astype(np.float32)
    values[0, :32] = 0
    if kind == GGMLType.Q8_0:
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0).view(np.uint8).reshape(n, -1)
    else:
        raw = raw_floats(kind, values)
    exact, theirs = dequantized(kind, raw), gguf.GGMLQuantizationType[becomes.name]
    wanted = (
        exact if kind.name == becomes.name else dequantized(GGMLType[becomes.name], gguf.quants.quantize(exact, theirs))
    )
    np.testing.assert_array_equal(unpacked(packed(kind, raw, groups * 32, becomes))[0], wanted)


def test_halves_are_rounded_away_from_zero() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :6] = 127, 0.5, -0.5, 2.5, -2.5, np.nextafter(np.float32(0.5), np.float32(0))
    weights = unpacked(packed(GGMLType.F32, values.view(np.uint8), 32))[0]
    assert weights[0, :6].tolist() == [127, 1, -1, 3, -3, 0]


def test_scales_that_are_not_finite_are_refused() -> None:
    for kind in QUANTIZED:
        for start in SCALES[kind]:
            raw = random_blocks(np.random.default_rng(0), kind, (20, 512))
            scale = raw[19, raw.shape[1] - kind.block_bytes + start :][:2]  # of the last block
            scale[:] = np.array([-np.inf if start else np.nan], np.float16).view(np.uint8)
            with pytest.raises(ModelError, match="finite"):
                pack_rows(raw, kind)
    raw = random_blocks(np.random.default_rng(0), GGMLType.MXFP4, (20, 512))
    raw[19, -17] = 254
    pack_rows(raw, GGMLType.MXFP4)
    raw[19, -17] = 255
    with pytest.raises(ModelError, match="finite"):
        pack_rows(raw, GGMLType.MXFP4)


def test_weights_beyond_float16_scales_are_refused() -> None:
    for number in (np.nan, np.inf, 1e9):
        values = np.ones((3, 64), np.float32)
        values[2, 40] = number
        for becomes in (Kind.Q8_0, Kind.Q4_0):
            with pytest.raises(ModelError, match="finite"):
                pack_rows(raw_floats(GGMLType.F32, values), GGMLType.F32, becomes)


@pytest.mark.parametrize("count", [1, 16, 50])
def test_selected_rows_are_those_of_the_matrix(count: int) -> None:
    random = np.random.default_rng(1)
    for kind in QUANTIZED:
        raw = random_blocks(random, kind, (70, 512))
        whole = packed(kind, raw, 512)
        ids = np.sort(random.permutation(70)[:count]).astype(np.int32)
        short = select_rows(whole, ids)
        assert (short.kind, short.n, short.k) == (whole.kind, count, 512)
        np.testing.assert_array_equal(unpacked(short)[0], dequantized(kind, raw)[ids])
        arrays = [array for array in (short.codes, short.scales, short.supers) if array is not None]
        for array, (dtype, shape) in zip(arrays, MatrixShape(whole.kind, count, 512).arrays, strict=True):
            assert (array.dtype, array.shape) == (dtype, shape)
            assert array.flags.c_contiguous
            assert array.ctypes.data % 64 == 0
