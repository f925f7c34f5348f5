"""Packed matrices, read back weight by weight as formats.h tells it, against gguf's own dequantizer: equal bits."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localdflash.backends.cpu.packing import KINDS, Kind, MatrixShape, PackedMatrix, pack_rows
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
    return PackedMatrix(shape.kind, len(raw), k, 1, *arrays)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(QUANTIZED),
    n=st.integers(1, 50),
    blocks=st.integers(1, 4),
    any_scale=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_numbers_of_the_file_are_kept_exactly(
    kind: GGMLType, n: int, blocks: int, any_scale: bool, seed: int
) -> None:
    k = blocks * kind.block_weights
    raw = random_blocks(np.random.default_rng(seed), kind, (n, k), any_scale=any_scale)
    before = raw.copy()
    with np.errstate(over="ignore"):  # the largest exponents of MXFP4
        np.testing.assert_array_equal(unpacked(packed(kind, raw, k))[0], dequantized(kind, raw))
    np.testing.assert_array_equal(raw, before)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_each_type_on_its_own(kind: GGMLType) -> None:
    raw = random_blocks(np.random.default_rng(3), kind, (33, 1024), any_scale=True)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(unpacked(packed(kind, raw, 1024))[0], dequantized(kind, raw))


def test_what_is_packed_is_about_as_large_as_in_the_file() -> None:
    """Q6_K alone takes a byte for each code."""
    for kind in QUANTIZED:
        raw = random_blocks(np.random.default_rng(3), kind, (16, 256))
        size = packed(kind, raw, 256).nbytes
        assert size <= 1.05 * raw.nbytes or kind == GGMLType.Q6_K, kind


@pytest.mark.parametrize("kind", QUANTIZED)
def test_channels_that_fill_up_a_panel_weigh_nothing(kind: GGMLType) -> None:
    raw = random_blocks(np.random.default_rng(0), kind, (17, 256))
    codes, *scales = pack_rows(raw, kind)
    whole = PackedMatrix(KINDS[kind], 32, 256, 1, *(array[np.newaxis] for array in (codes, *scales)))
    weights = unpacked(whole)[0]
    assert weights[:17].any(1).all()
    assert not weights[17:].any()


def test_codes_of_six_bits_stay_below_64() -> None:
    codes, *_ = pack_rows(np.full((16, 210), 0x3F, np.uint8), GGMLType.Q6_K)
    assert codes.max() < 64


def raw_floats(kind: GGMLType, values: NDArray[np.float32]) -> Bytes:
    if kind == GGMLType.BF16:
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float32 if kind == GGMLType.F32 else np.float16).view(np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(FLOATS),
    n=st.integers(1, 20),
    groups=st.integers(1, 4),
    size=st.sampled_from([1e-30, 1e-6, 0.02, 1.0, 1e4]),
    seed=st.integers(0, 999),
)
def test_float_weights_are_rounded_as_ggml_does(kind: GGMLType, n: int, groups: int, size: float, seed: int) -> None:
    values = (np.random.default_rng(seed).standard_normal((n, groups * 32)) * size).astype(np.float32)
    values[0, :32] = 0
    raw = raw_floats(kind, values)
    exact = dequantized(kind, raw)
    rounded = dequantized(GGMLType.Q8_0, gguf.quants.quantize(exact, gguf.GGMLQuantizationType.Q8_0))
    matrix = packed(kind, raw, groups * 32)
    assert matrix.kind == Kind.Q8_0
    np.testing.assert_array_equal(unpacked(matrix)[0], rounded)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from((*FLOATS, GGMLType.Q8_0)),
    n=st.integers(1, 40),
    groups=st.integers(1, 9),
    size=st.sampled_from([0.0, 1e-30, 1e-6, 0.05, 900.0]),
    seed=st.integers(0, 999),
)
def test_four_bits_are_those_of_gguf(kind: GGMLType, n: int, groups: int, size: float, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((n, 32 * groups)).astype(np.float32) * np.float32(size)
    theirs = gguf.GGMLQuantizationType(kind)
    raw = gguf.quants.quantize(weights, theirs).view(np.uint8).reshape(n, -1)
    known = gguf.quants.dequantize(raw, theirs) if kind == GGMLType.Q8_0 else dequantized(kind, raw)
    expected = gguf.quants.quantize(known, gguf.GGMLQuantizationType.Q4_0)
    found = unpacked(packed(kind, raw, 32 * groups, Kind.Q4_0))[0]
    np.testing.assert_array_equal(found, gguf.quants.dequantize(expected, gguf.GGMLQuantizationType.Q4_0))


def test_halves_are_rounded_away_from_zero() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :6] = 127, 0.5, -0.5, 2.5, -2.5, np.nextafter(np.float32(0.5), np.float32(0))
    weights = unpacked(packed(GGMLType.F32, values.view(np.uint8), 32))[0]
    assert weights[0, :6].tolist() == [127, 1, -1, 3, -3, 0]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "start"), [(kind, start) for kind in QUANTIZED for start in SCALES[kind]])
def test_a_scale_that_is_no_number_is_refused(kind: GGMLType, start: int, number: float) -> None:
    raw = random_blocks(np.random.default_rng(0), kind, (20, 512))
    last = raw.shape[1] - kind.block_bytes
    raw[19, last + start : last + start + 2] = np.array([number], np.float16).view(np.uint8)
    with pytest.raises(ModelError, match="finite"):
        pack_rows(raw, kind)


def test_an_exponent_that_is_no_number_is_refused() -> None:
    raw = random_blocks(np.random.default_rng(0), GGMLType.MXFP4, (20, 512))
    raw[19, -17] = 254
    pack_rows(raw, GGMLType.MXFP4)
    raw[19, -17] = 255
    with pytest.raises(ModelError, match="finite"):
        pack_rows(raw, GGMLType.MXFP4)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.BF16])
def test_a_weight_beyond_float16_scales_is_refused(kind: GGMLType, number: float) -> None:
    values = np.ones((3, 64), np.float32)
    values[2, 40] = number
    with pytest.raises(ModelError, match="finite"):
        pack_rows(raw_floats(kind, values), kind)
