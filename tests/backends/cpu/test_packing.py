"""Packed matrices: rounding of floats, refused scales, selected rows. test_products multiplies every format."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.cpu.packing import (
    KINDS,
    Kind,
    MatrixShape,
    PackedMatrix,
    _round_to_q4_0,
    _round_to_q8_0,
    pack_rows,
    select_rows,
)
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import QUANTIZED, SCALES, dequantized, holds, random_blocks


@settings(max_examples=40, deadline=None)
@given(
    becomes=st.sampled_from([GGMLType.Q8_0, GGMLType.Q4_0]),
    size=st.sampled_from([1e-30, 1e-6, 0.02, 1.0, 900.0]),
    seed=st.integers(0, 999),
)
def test_float_weights_are_rounded_as_gguf_does(becomes: GGMLType, size: float, seed: int) -> None:
    values = (np.random.default_rng(seed).standard_normal((32, 128)) * size).astype(np.float32)
    values[0, :32] = 0
    ours = (_round_to_q8_0 if becomes == GGMLType.Q8_0 else _round_to_q4_0)(values)
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType(int(becomes)))
    np.testing.assert_array_equal(dequantized(becomes, ours), dequantized(becomes, theirs))
    for packed, wanted in zip(
        pack_rows(values.view(np.uint8), GGMLType.F32, Kind[becomes.name]), pack_rows(ours, becomes), strict=True
    ):
        np.testing.assert_array_equal(packed, wanted)


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


def test_selected_rows_are_those_of_the_matrix() -> None:
    random, count = np.random.default_rng(1), 48
    for kind in QUANTIZED:
        raw = random_blocks(random, kind, (70, 512))
        whole = PackedMatrix(KINDS[kind], 70, 512, 1, *(array[np.newaxis] for array in pack_rows(raw, kind)))
        ids = np.sort(random.permutation(70)[:count]).astype(np.int32)
        short = select_rows(whole, ids)
        assert (short.kind, short.n, short.k) == (whole.kind, count, 512)
        assert holds(short, kind, raw[ids])
        arrays = [array for array in (short.codes, short.scales, short.supers) if array is not None]
        for array, (dtype, shape) in zip(arrays, MatrixShape(whole.kind, count, 512).arrays, strict=True):
            assert (array.dtype, array.shape) == (dtype, shape)
            assert array.flags.c_contiguous
            assert array.ctypes.data % 64 == 0
