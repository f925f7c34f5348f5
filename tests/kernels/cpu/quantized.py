"""Random quantized matrices and activations, packed by plain numpy, and what their product is: three oracles."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.cpu.library import MatrixStruct, RowsStruct
from localdflash.cpu.matrices import Kind

PANEL, GROUP, SUPER = 16, 32, 256
ZERO = {"Q8_0": 128, "Q4_0": 8, "Q4_K": 0, "Q6_K": 32, "Q4_1": 0}
CODES = {"Q8_0": 256, "Q4_0": 16, "Q4_K": 16, "Q6_K": 64, "Q4_1": 16}
BY_GROUP = ("Q8_0", "Q4_0", "Q4_1")  # without super-scales
Array = NDArray[Any]


@dataclass(frozen=True)
class Weights:
    """A matrix [n, k] as a file has it. `scale` [n, parts]: float16 by 32 inputs, or of Q4_K uint8 by 32, of Q6_K int8
    by 16. `minimum` by 32: of Q4_K uint8, of Q4_1 float16, taken off. The rest by 256 inputs, of Q4_K and Q6_K."""

    kind: str
    codes: Array  # [n, k] uint8
    scale: Array
    minimum: Array | None = None  # [n, k / 32]
    d: Array | None = None  # [n, k / 256] float16
    dmin: Array | None = None

    @property
    def integers(self) -> Array:
        """[n, k] codes without their zero point."""
        return self.codes.astype(np.int64) - ZERO[self.kind]


@dataclass(frozen=True)
class Activations:
    """Rows [rows, k] of codes, and their scales by 32 inputs."""

    codes: Array  # int8
    scales: Array  # [rows, k / 32] float32

    def row(self, index: int) -> "Activations":
        return Activations(self.codes[index : index + 1], self.scales[index : index + 1])

    def first(self, rows: int) -> "Activations":
        return Activations(self.codes[:rows].copy(), self.scales[:rows].copy())


def random_weights(kind: str, n: int, k: int, random: np.random.Generator, *, whole: bool = False) -> Weights:
    """Any codes and scales; `whole` are scales whose products are small integers."""

    def halves(*shape: int) -> Array:
        return np.ones(shape, np.float16) if whole else random.normal(0, 0.02, shape).astype(np.float16)

    codes = random.integers(0, CODES[kind], (n, k), np.uint8)
    if kind in BY_GROUP:
        return Weights(kind, codes, halves(n, k // GROUP), halves(n, k // GROUP) if kind == "Q4_1" else None)
    if kind == "Q6_K":
        scale = random.integers(-2, 3, (n, k // 16)) if whole else random.integers(-128, 128, (n, k // 16))
        return Weights(kind, codes, scale.astype(np.int8), d=halves(n, k // SUPER))
    small = random.integers(0, 3 if whole else 64, (2, n, k // GROUP)).astype(np.uint8)
    return Weights(kind, codes, small[0], small[1], halves(n, k // SUPER), halves(n, k // SUPER))


def random_activations(rows: int, k: int, random: np.random.Generator, *, whole: bool = False) -> Activations:
    codes = random.integers(-127, 128, (rows, k)).astype(np.int8)
    scales = np.ones((rows, k // GROUP)) if whole else random.uniform(0.001, 0.1, (rows, k // GROUP))
    return Activations(codes, scales.astype(np.float32))


def product(
    kernels: Any,
    weights: Weights,
    x: Activations,
    panels: tuple[int, int] | None = None,
    margin: int = 0,
    packed: "Packed | None" = None,
) -> Array:
    """[rows, channels of whole panels] float32 by the library; with a margin a row and `margin` columns around it."""
    rows, k = x.codes.shape
    n = len(weights.codes)
    first, last = panels or (0, -(-n // PANEL))
    packed = packed or Packed(weights)
    matrix = MatrixStruct(Kind[weights.kind], n, k, *packed.addresses)
    sums = x.codes.reshape(rows, -1, 16).sum(2, dtype=np.int32)
    codes, scales = np.ascontiguousarray(x.codes), np.ascontiguousarray(x.scales)
    with np.errstate(invalid="ignore"):
        totals = totals_by_groups(x)
    quantized = RowsStruct(codes.ctypes.data, scales.ctypes.data, sums.ctypes.data, totals.ctypes.data)
    around = 1 if margin else 0
    out = np.full((rows + 2 * around, (last - first) * PANEL + 2 * margin), 7.5, np.float32)
    place = out.ctypes.data + 4 * (around * out.shape[1] + margin)
    kernels.product(matrix, quantized, rows, first, last, place, out.shape[1])
    return out


class Packed:
    """A matrix as kernels/cpu/formats.h has it; n is filled up with zeros. Keeps the arrays of `addresses`."""

    def __init__(self, weights: Weights) -> None:
        k = weights.codes.shape[1]
        quads = panelled(weights.codes).reshape(-1, PANEL, k // GROUP, 8, 4).transpose(0, 2, 3, 1, 4)
        if CODES[weights.kind] == 16:
            quads = quads[:, :, 0::2] | quads[:, :, 1::2] << 4
        self.codes = np.ascontiguousarray(quads)
        shift = weights.minimum if weights.kind == "Q4_1" else None  # taken off here, added there
        self.scales = by_parts(weights.scale, weights.minimum if shift is None else None)
        self.supers = None if weights.d is None else by_parts(weights.d, weights.dmin)
        if shift is not None:
            self.supers = by_parts(-shift, None)

    @property
    def addresses(self) -> tuple[int, int, int | None]:
        return self.codes.ctypes.data, self.scales.ctypes.data, None if self.supers is None else self.supers.ctypes.data


def by_parts(scale: Array, minimum: Array | None) -> Array:
    """[panels, parts, 1 or 2, 16 channels]."""
    both = [panelled(array).transpose(0, 2, 1) for array in (scale, minimum) if array is not None]
    return np.ascontiguousarray(np.stack(both, 2))


def panelled(array: Array) -> Array:
    """[n, m] as [panels, 16, m]."""
    padding = -len(array) % PANEL
    return np.pad(array, ((0, padding), (0, 0))).reshape(-1, PANEL, array.shape[1])


def by_groups(weights: Weights, x: Activations) -> Array:
    """[groups, rows, n] int64: the integer products; of Q6_K the scales of sixteen inputs are in them."""
    integers, codes = weights.integers, x.codes.astype(np.int64)
    if weights.kind == "Q6_K":
        integers = integers * np.repeat(weights.scale.astype(np.int64), 16, 1)
    groups = integers.shape[1] // GROUP
    return np.stack([codes[:, 32 * g : 32 * g + 32] @ integers[:, 32 * g : 32 * g + 32].T for g in range(groups)])


def scales_by_groups(weights: Weights, dtype: type[np.floating[Any]]) -> tuple[Array, Array | None]:
    """[n, groups] scale, and minimum if there is one, multiplied in a precision."""
    if weights.d is None:
        return weights.scale.astype(dtype), None if weights.minimum is None else weights.minimum.astype(dtype)
    d = np.repeat(weights.d.astype(dtype), SUPER // GROUP, 1)
    if weights.minimum is None or weights.dmin is None:
        return d, None
    dmin = np.repeat(weights.dmin.astype(dtype), SUPER // GROUP, 1)
    return d * weights.scale.astype(dtype), dmin * weights.minimum.astype(dtype)


def terms(weights: Weights, x: Activations) -> Array:
    """[terms, rows, n] float64: their sum is the product."""
    scale, minimum = scales_by_groups(weights, np.float64)
    x_scale = x.scales.astype(np.float64).T[:, :, None]  # [groups, rows, 1]
    products = by_groups(weights, x) * scale.T[:, None] * x_scale
    if minimum is None:
        return products
    sums = x.codes.reshape(len(x.codes), -1, GROUP).sum(2, dtype=np.int64).T[:, :, None]
    return np.concatenate([products, -sums * minimum.T[:, None] * x_scale])


def formula(weights: Weights, x: Activations) -> Array:
    """[rows, n] float32 by the formula at the top of kernels/cpu/products.h, rounding where it rounds."""
    scale, minimum = scales_by_groups(weights, np.float32)
    dots = by_groups(weights, x)
    totals = totals_by_groups(x)
    total, shifted = np.zeros(dots.shape[1:], np.float32), np.zeros(dots.shape[1:], np.float32)
    for group, dot in enumerate(dots):
        x_scale = x.scales[:, group, None]
        total = fused(dot.astype(np.float32), scale[None, :, group] * x_scale, total)
        if minimum is not None:
            shifted = fused(totals[:, group, None], -minimum[None, :, group], shifted)
    return total if minimum is None else total + shifted


def totals_by_groups(x: Activations) -> Array:
    """[rows, groups] float32: sums of codes times their scale."""
    return x.codes.reshape(len(x.codes), -1, GROUP).sum(2, dtype=np.int32).astype(np.float32) * x.scales


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once to float32, for 24-bit a and b: their product is exact in float64.

    The sum is rounded to odd in float64, which then rounds to float32 as if it had never been rounded: of the two
    float64 around the exact sum, the one whose last bit is set is no tie and on no wrong side of one.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    near = product + addend
    back = near - product
    lost = (product - (near - back)) + (addend - back)  # exactly (Knuth)
    even = near.view(np.int64) & 1 == 0
    return np.where((lost != 0) & even, np.nextafter(near, np.copysign(np.inf, lost)), near).astype(np.float32)
