"""Products of quantized rows with packed weights: near float64, the same bits everywhere, independent rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import MatrixStruct, RowsStruct, address
from localdflash.backends.cpu.packing import KINDS, pack_rows
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import QUANTIZED, SCALES, Bytes, dequantized
from tests.support.gguf_files import random_blocks

PANEL, GROUP = 16, 32
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Activations:
    """Rows [rows, k] of codes, and their scales by 32 inputs."""

    codes: NDArray[np.int8]
    scales: Floats

    def __getitem__(self, rows: slice) -> "Activations":
        return Activations(self.codes[rows].copy(), self.scales[rows].copy())


def random_activations(rows: int, k: int) -> Activations:
    random = np.random.default_rng(rows)
    scales = random.uniform(0.001, 0.1, (rows, k // GROUP)).astype(np.float32)
    return Activations(random.integers(-127, 128, (rows, k)).astype(np.int8), scales)


def product(
    kernels: Any, kind: GGMLType, raw: Bytes, x: Activations, panels: tuple[int, int] | None = None, margin: int = 0
) -> Floats:
    """[rows, channels of whole panels] by the library; with a margin a row and `margin` columns around it."""
    (rows, k), (codes, *scales) = x.codes.shape, pack_rows(raw, kind)
    room = np.concatenate([np.zeros(1, np.uint8), codes.reshape(-1)])  # codes that are not aligned
    first, last = panels or (0, -(-len(raw) // PANEL))
    matrix = MatrixStruct(KINDS[kind], len(raw), k, room[1:].ctypes.data, *map(address, scales))
    sums = x.codes.reshape(rows, -1, 16).sum(2, dtype=np.int32)
    with np.errstate(invalid="ignore"):
        totals = (sums[:, 0::2] + sums[:, 1::2]).astype(np.float32) * x.scales
    quantized = RowsStruct(address(x.codes), address(x.scales), address(sums), address(totals))
    around = 1 if margin else 0
    out = np.full((rows + 2 * around, (last - first) * PANEL + 2 * margin), 7.5, np.float32)
    place = out.ctypes.data + 4 * (around * out.shape[1] + margin)
    kernels.product(matrix, quantized, rows, first, last, place, out.shape[1])
    return out


def assert_near(found: Floats, kind: GGMLType, raw: Bytes, x: Activations) -> None:
    """Assert that products are near gguf's weights times the rows in float64."""
    weights = dequantized(kind, raw).astype(np.float64)
    values = x.codes * np.repeat(x.scales.astype(np.float64), GROUP, 1)
    off = np.abs(values).sum(1)[:, None] * np.abs(weights).max(1)
    assert (np.abs(found[:, : len(raw)] - values @ weights.T) <= 1e-6 * off).all()


def bits(array: Floats) -> NDArray[np.int32]:
    """Return floats as integers: -0 is not 0, and a NaN equals itself."""
    return array.view(np.int32)


@pytest.mark.parametrize("kind", QUANTIZED, ids=[kind.name for kind in QUANTIZED])
class TestEveryKind:
    """Every packed format, on every instruction set of this processor."""

    def test_near_float64_with_the_same_bits_on_every_instruction_set(
        self, all_kernels: list[Any], kind: GGMLType
    ) -> None:
        depths = (32, 64, 96, 416) if kind.block_weights == GROUP else (256, 768)
        for n, rows, k in ((90, 9, 1024), *((16, 3, k) for k in depths)):
            raw, x = random_blocks(np.random.default_rng(k), kind.name, (n, k)), random_activations(rows, k)
            portable = product(all_kernels[-1], kind, raw, x)
            assert_near(portable, kind, raw, x)
            assert not portable[:, n:].any()  # the last panel is padded with zeros
            for kernels in all_kernels[:-1]:
                assert np.array_equal(bits(product(kernels, kind, raw, x)), bits(portable)), k

    def test_largest_sums(self, all_kernels: list[Any], kind: GGMLType) -> None:
        """Codes, scales and activations at their ends: no instruction saturates."""
        k = 512
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            blocks = np.full((16, k // kind.block_weights, kind.block_bytes), byte, np.uint8)
            for start in SCALES[kind]:
                blocks[..., start : start + 2] = np.array([2.0**-10], np.float16).view(np.uint8)
            if kind == GGMLType.MXFP4:
                blocks[..., 0] = 120
            raw = blocks.reshape(16, -1)
            for pattern in ((127,), (-127,), (-127, 127, 127, -127), (0,)):
                codes = np.tile(np.resize(np.array(pattern, np.int8), k), (5, 1))
                x = Activations(codes, np.ones((5, k // GROUP), np.float32))
                for kernels in all_kernels:
                    assert_near(product(kernels, kind, raw, x), kind, raw, x)

    def test_a_row_is_the_same_among_any_others(self, all_kernels: list[Any], kind: GGMLType) -> None:
        raw, x = random_blocks(np.random.default_rng(4), kind.name, (32, 512)), random_activations(64, 512)
        for kernels in all_kernels:
            alone = np.concatenate([product(kernels, kind, raw, x[row : row + 1]) for row in range(64)])
            for rows in (*range(2, 18), 31, 33, 64):
                assert np.array_equal(bits(product(kernels, kind, raw, x[:rows])), bits(alone[:rows])), rows

    def test_parts_of_the_panels_and_nothing_around_them(self, all_kernels: list[Any], kind: GGMLType) -> None:
        raw, x = random_blocks(np.random.default_rng(5), kind.name, (90, 256)), random_activations(6, 256)
        for kernels in all_kernels:
            whole = product(kernels, kind, raw, x)
            for first, last in ((0, 1), (2, 5), (5, 6), (3, 3)):
                out = product(kernels, kind, raw, x, (first, last), margin=8)
                inside = out[1:-1, 8:-8]
                assert np.array_equal(inside, whole[:, PANEL * first : PANEL * last])
                inside[...] = 7.5
                assert (out == 7.5).all()

    def test_zeros_give_zeros_and_a_nan_stays_in_its_row(self, all_kernels: list[Any], kind: GGMLType) -> None:
        raw, clean = random_blocks(np.random.default_rng(7), kind.name, (32, 512)), random_activations(4, 512)
        x = clean[:]
        x.codes[1], x.scales[1] = 0, 0
        x.codes[2, 64:96], x.scales[2, 2] = 0, np.nan  # as a group that was not finite is quantized
        for kernels in all_kernels:
            out = product(kernels, kind, raw, x)
            assert not out[1].any()
            assert np.isnan(out[2]).all()
            assert np.array_equal(bits(out[[0, 3]]), bits(product(kernels, kind, raw, clean)[[0, 3]]))


def test_exponents_at_their_ends(kernels: Any) -> None:
    """The smallest scales of MXFP4 are subnormal; the sum of a group is exact at any."""
    kind = GGMLType.MXFP4
    raw, x = random_blocks(np.random.default_rng(11), kind.name, (32, 32)), random_activations(3, 32)
    x.scales[:] = 1
    for exponent in (0, 1, 2, 128, 234):
        raw[:, 0] = exponent
        exact = x.codes.astype(np.float64) @ dequantized(kind, raw).astype(np.float64).T
        assert exact.any()
        assert np.array_equal(product(kernels, kind, raw, x), exact)
