"""Random quantized matrices and activations, packed by plain numpy, and what their product is: three oracles."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import MatrixStruct, RowsStruct
from localdflash.backends.cpu.packing import Kind

PANEL, GROUP, SUPER = 16, 32, 256
Array = NDArray[Any]
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled


@dataclass(frozen=True)
class Form:
    """A format: bits of its planes, and what is a scale, of how many inputs; `minimum` likewise, if there is one."""

    planes: tuple[int, ...]
    zero: int = 0
    values: tuple[int, ...] = ()  # of the codes, where they are no even steps
    scale: Any = np.float16  # or the integers that a super-scale is multiplied with
    minimum: Any = None
    inputs: int = GROUP

    @property
    def codes(self) -> int:
        """How many there are."""
        return 64 if self.zero == 32 else 2 ** sum(self.planes)

    @property
    def supers(self) -> bool:
        """Return whether there are super-scales."""
        return isinstance(self.scale, range) and self.scale is not EXPONENTS


EXPONENTS = range(119, 124)
BYTES, SIX_BITS, LESS_32, FOUR_BITS = range(-128, 128), range(64), range(-32, 32), range(16)
FORMS = {
    "Q8_0": Form((8,), 128),
    "Q4_0": Form((4,), 8),
    "Q4_1": Form((4,), minimum=np.float16),
    "Q5_0": Form((4, 1), 16),
    "Q5_1": Form((4, 1), minimum=np.float16),
    "IQ4_NL": Form((4,), values=IQ4),
    "MXFP4": Form((4,), values=E2M1, scale=EXPONENTS),
    "Q2_K": Form((2,), scale=FOUR_BITS, minimum=FOUR_BITS, inputs=16),
    "Q3_K": Form((2, 1), 4, scale=LESS_32, inputs=16),
    "Q4_K": Form((4,), scale=SIX_BITS, minimum=SIX_BITS),
    "Q5_K": Form((4, 1), scale=SIX_BITS, minimum=SIX_BITS),
    "Q6_K": Form((8,), 32, scale=BYTES, inputs=16),
    "IQ4_XS": Form((4,), values=IQ4, scale=LESS_32),
}
BY_GROUP = tuple(kind for kind, form in FORMS.items() if not form.supers)


@dataclass(frozen=True)
class Weights:
    """A matrix [n, k] as a file has it: `scale` and `minimum` [n, parts], the latter taken off; d and dmin by 256."""

    kind: str
    codes: Array  # [n, k] uint8
    scale: Array
    minimum: Array | None = None
    d: Array | None = None  # float16
    dmin: Array | None = None

    @property
    def form(self) -> Form:
        return FORMS[self.kind]

    @property
    def integers(self) -> Array:
        """[n, k] what codes stand for, without their zero point."""
        values = self.form.values
        return np.array(values)[self.codes] if values else self.codes.astype(np.int64) - self.form.zero


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

    form = FORMS[kind]

    def scales(of: Any, inputs: int) -> Array:
        shape = n, k // inputs
        if of is np.float16:
            return np.ones(shape, np.float16) if whole else random.normal(0, 0.02, shape).astype(np.float16)
        if of is EXPONENTS:
            return np.full(shape, 128, np.uint8) if whole else random.choice(of, shape).astype(np.uint8)
        return random.choice(range(max(of[0], -2), 3) if whole else of, shape).astype(np.int8 if of[0] else np.uint8)

    codes = random.integers(0, form.codes, (n, k), np.uint8)
    minimum = None if form.minimum is None else scales(form.minimum, form.inputs)
    d = scales(np.float16, SUPER) if form.supers else None
    dmin = scales(np.float16, SUPER) if form.supers and form.minimum else None
    return Weights(kind, codes, scales(form.scale, form.inputs), minimum, d, dmin)


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
        k, form = weights.codes.shape[1], weights.form
        quads = panelled(weights.codes).reshape(-1, PANEL, k // GROUP, 8, 4).transpose(0, 2, 3, 1, 4)
        planes, below = [], 0
        for bits in form.planes:
            planes += [plane(quads >> below & (2**bits - 1), bits)]
            below += bits
        self.codes = np.concatenate(planes, 2)
        self.supers = None if weights.d is None else by_parts(weights.d, weights.dmin)
        if weights.minimum is None:
            self.scales = by_parts(weights.scale)
        elif form.minimum is np.float16:
            self.scales, self.supers = (
                by_parts(weights.scale),
                by_parts(-weights.minimum),
            )  # taken off here, added there
        elif form.inputs == 16:
            self.scales = by_parts(weights.scale | weights.minimum << 4)
        else:
            self.scales = by_parts(weights.scale, weights.minimum)

    @property
    def addresses(self) -> tuple[int, int, int | None]:
        return self.codes.ctypes.data, self.scales.ctypes.data, None if self.supers is None else self.supers.ctypes.data


def plane(quads: Array, bits: int) -> Array:
    """[panels, groups, 8, 16, 4] fields of so many bits -> [panels, groups, bits, 16, 4]."""
    shared = 8 // bits
    return np.bitwise_or.reduce([quads[:, :, i::shared] << bits * i for i in range(shared)])


def by_parts(scale: Array, minimum: Array | None = None) -> Array:
    """[panels, parts, 1 or 2, 16 channels]."""
    both = [panelled(array).transpose(0, 2, 1) for array in (scale, minimum) if array is not None]
    return np.ascontiguousarray(np.stack(both, 2))


def panelled(array: Array) -> Array:
    """[n, m] as [panels, 16, m]."""
    padding = -len(array) % PANEL
    return np.pad(array, ((0, padding), (0, 0))).reshape(-1, PANEL, array.shape[1])


def by_groups(weights: Weights, x: Activations) -> Array:
    """[groups, rows, n] int64: the integer products; the scales of sixteen inputs are in them."""
    integers, codes = weights.integers, x.codes.astype(np.int64)
    if weights.form.inputs == 16:
        integers = integers * np.repeat(weights.scale.astype(np.int64), 16, 1)
    groups = integers.shape[1] // GROUP
    return np.stack([codes[:, 32 * g : 32 * g + 32] @ integers[:, 32 * g : 32 * g + 32].T for g in range(groups)])


def scales_by_groups(weights: Weights, dtype: type[np.floating[Any]]) -> Array:
    """[n, groups] what integer products are multiplied with, multiplied in a precision."""
    if weights.form.scale is EXPONENTS:
        return np.ldexp(dtype(1), weights.scale.astype(np.int32) - 128).astype(dtype)
    scale = weights.scale.astype(dtype)
    if weights.d is None:
        return scale
    d = np.repeat(weights.d.astype(dtype), SUPER // GROUP, 1)
    return d if weights.form.inputs == 16 else d * scale


def minimums(weights: Weights, dtype: type[np.floating[Any]]) -> Array | None:
    """[n, parts] what is taken off, multiplied in a precision."""
    if weights.minimum is None:
        return None
    minimum = weights.minimum.astype(dtype)
    if weights.dmin is None:
        return minimum
    return np.repeat(weights.dmin.astype(dtype), SUPER // weights.form.inputs, 1) * minimum


def sums_of(x: Activations, inputs: int) -> Array:
    """[rows, parts]: sums of so many codes."""
    return x.codes.reshape(len(x.codes), -1, inputs).sum(2, dtype=np.int64)


def terms(weights: Weights, x: Activations) -> Array:
    """[terms, rows, n] float64: their sum is the product."""
    scale, minimum = scales_by_groups(weights, np.float64), minimums(weights, np.float64)
    x_scale = x.scales.astype(np.float64)
    products = by_groups(weights, x) * scale.T[:, None] * x_scale.T[:, :, None]
    if minimum is None:
        return products
    inputs = weights.form.inputs
    totals = sums_of(x, inputs) * np.repeat(x_scale, GROUP // inputs, 1)
    return np.concatenate([products, -totals.T[:, :, None] * minimum.T[:, None]])


def formula(weights: Weights, x: Activations) -> Array:
    """[rows, n] float32 by the formula at the top of kernels/cpu/products.h, rounding where it rounds."""
    scale, minimum, dots = scales_by_groups(weights, np.float32), minimums(weights, np.float32), by_groups(weights, x)
    total, shifted = np.zeros(dots.shape[1:], np.float32), np.zeros(dots.shape[1:], np.float32)
    for group, dot in enumerate(dots):
        total = fused(dot.astype(np.float32), scale[None, :, group] * x.scales[:, group, None], total)
    if minimum is None:
        return total
    inputs = weights.form.inputs
    totals = sums_of(x, inputs).astype(np.float32) * np.repeat(x.scales, GROUP // inputs, 1)
    for part in range(minimum.shape[1]):
        shifted = fused(totals[:, part, None], -minimum[None, :, part], shifted)
    return total + shifted


def totals_by_groups(x: Activations) -> Array:
    """[rows, groups] float32: sums of codes times their scale."""
    return sums_of(x, GROUP).astype(np.float32) * x.scales


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
