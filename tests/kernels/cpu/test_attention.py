"""Attention on the CPU: against numpy in float64, rows independent of each other, stale memory without influence."""

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import CacheStruct, address

EPSILON = 2.0**-24
STALE = 0x7E00  # NaN as float16
FORMS = ("f16", "int8", "k8v4")
CAPACITY = 1088  # keys: more than two parts
SHAPES = [
    *(("f16", head_dim) for head_dim in (16, 80, 128)),
    *((kv, head_dim) for kv in ("int8", "k8v4") for head_dim in (64, 96, 512)),
]
SIZES = np.array([6, 18, 30, 43, 57, 73, 93, 120])  # of values in 4 bits, by the lowest three bits
Floats = NDArray[np.float32]
Positions = NDArray[np.int32]
Cached = tuple[NDArray[Any], ...]  # K, V and their scales, in the layout of formats.h


@dataclass
class Case:
    """Rows q [rows, head_dim] that see keys begin up to end of a cache."""

    kv: str
    cached: Cached
    q: Floats
    begin: Positions
    end: Positions

    @property
    def scale(self) -> float:
        return float(self.q.shape[1] ** -0.5)

    @property
    def struct(self) -> CacheStruct:
        pointers = [*map(address, self.cached), None, None][:4]
        return CacheStruct(*pointers, {"f16": 16, "int8": 8, "k8v4": 4}[self.kv])

    def copied(self) -> "Case":
        return replace(self, cached=tuple(array.copy() for array in self.cached))


def encode(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return codes of x [..., n] and their scales [...]."""
    most = np.abs(x).max(axis=-1)
    return np.rint(x * (np.float32(127) / most)[..., None]).astype(np.int8), most / np.float32(127)


def mix(x: NDArray[Any]) -> NDArray[Any]:
    """Multiply numbers 16 dimensions apart by a Hadamard matrix; twice: times the largest power of 2 in n / 16."""
    rows, n = x.shape
    half = 16
    while half < (n & -n):
        first, second = np.moveaxis(x.reshape(rows, -1, 2, half), 2, 0)
        x = np.stack((first + second, first - second), 2).reshape(rows, n)
        half *= 2
    return x


def pack(kv: str, keys: Floats, values: Floats) -> Cached:
    """Return K and V [capacity, head_dim] as the cache stores them."""
    capacity, head_dim = keys.shape
    strips = capacity // 16
    if kv == "f16":
        halves = keys.astype(np.float16).view(np.uint16).reshape(strips, 16, head_dim)
        return np.ascontiguousarray(halves.transpose(0, 2, 1)), values.astype(np.float16).view(np.uint16)
    codes, scales = encode(keys.reshape(strips, 16, head_dim // 32, 32))
    pairs = codes.reshape(strips, 16, head_dim // 2, 2).transpose(0, 2, 1, 3)
    value_codes, value_scales = encode(mix(values) if kv == "k8v4" else values)
    value_pairs = value_codes.reshape(capacity // 2, 2, head_dim).transpose(0, 2, 1)
    if kv == "k8v4":
        nibbles = np.abs(np.abs(value_pairs.astype(int))[..., None] - SIZES).argmin(-1) + 8 * (value_pairs < 0)
        low, high = nibbles.reshape(capacity // 2, head_dim // 16, 2, 8, 2).swapaxes(0, 2).swapaxes(1, 2)
        value_pairs = (low | high << 4).astype(np.uint8).reshape(capacity // 2, head_dim // 2, 2)
    arrays = (pairs, value_pairs, scales.transpose(0, 2, 1), value_scales)
    return tuple(map(np.ascontiguousarray, arrays))


def unpack(kv: str, cached: Cached) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return K and V [capacity, head_dim] of a cache."""
    if kv == "f16":
        strips, head_dim, _ = cached[0].shape
        keys = cached[0].transpose(0, 2, 1).reshape(strips * 16, head_dim).view(np.float16)
        return keys.astype(np.float64), cached[1].view(np.float16).astype(np.float64)
    strips, half, _, _ = cached[0].shape
    scales = cached[2].transpose(0, 2, 1).reshape(strips * 16, half // 16).repeat(32, axis=1)
    keys = cached[0].transpose(0, 2, 1, 3).reshape(strips * 16, 2 * half).astype(np.float64)
    pairs = cached[1]
    if kv == "k8v4":
        nibbles = np.stack((pairs & 15, pairs >> 4), 1).reshape(strips * 8, 2, half // 8, 8, 2).swapaxes(1, 2)
        pairs = np.concatenate((SIZES, -SIZES))[nibbles].reshape(strips * 8, 2 * half, 2)
    values = pairs.transpose(0, 2, 1).reshape(strips * 16, 2 * half).astype(np.float64)
    values *= cached[3][:, None]
    mixed: NDArray[np.float64] = mix(values) / (2 * half & -2 * half) * 16 if kv == "k8v4" else values
    return np.asarray(keys * scales, np.float64), mixed


def spoil(case: Case, positions: NDArray[np.bool_]) -> None:
    """Overwrite some positions with NaN."""
    strips, rows = positions.reshape(-1, 1, 16), positions
    stale: Any = np.nan
    if case.kv == "f16":
        rows, stale = positions[:, None], np.uint16(STALE)
    for array, corrupted in zip(case.cached[-2:], (strips, rows), strict=True):
        array[...] = np.where(corrupted, stale, array)


def random_case(kv: str, rows: int, head_dim: int, capacity: int = CAPACITY, seed: int = 0) -> Case:
    """Return rows with ranges of one key, within a block, of several blocks, and of a verify batch."""
    rng = np.random.default_rng(seed)
    keys, values = (rng.standard_normal((capacity, head_dim)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((rows, head_dim)).astype(np.float32) * 2
    begin = rng.integers(0, capacity, rows).astype(np.int32)
    end = rng.integers(begin + 1, capacity + 1).astype(np.int32)
    begin[::3] = 0
    end[::2] = np.maximum(begin[::2] + 1, capacity - rows + np.arange(0, rows, 2, dtype=np.int32))
    end[4::7] = begin[4::7] + 1
    return Case(kv, pack(kv, keys, values), q, begin, end)


def attend(kernels: Any, case: Case, rows: slice = slice(None)) -> Floats:
    q, begin, end = (np.ascontiguousarray(array[rows]) for array in (case.q, case.begin, case.end))
    out: Floats = np.full(q.shape, np.nan, np.float32)
    (count, width), ranges = q.shape, (address(begin), address(end))
    kernels.attend(ctypes.byref(case.struct), address(q), width, *ranges, count, width, case.scale, address(out), width)
    return out


def exact(case: Case) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return attention [rows, head_dim] in float64, and the kernels' tolerance [rows, 1]: float32 sums in any order,
    and for codes 16-bit codes of queries and of the weights of a block of 64 values.
    """
    keys, values = unpack(case.kv, case.cached)
    head_dim, rounded = case.q.shape[1], 0.0 if case.kv == "f16" else 0.5 / 32767
    out, off = np.empty(case.q.shape), np.empty((len(case.q), 1))
    for r, (begin, end) in enumerate(zip(case.begin, case.end, strict=True)):
        q, seen = case.q[r].astype(np.float64), keys[begin:end]
        scores = seen @ q * case.scale
        weights = np.exp(scores - scores.max())
        out[r] = weights @ values[begin:end] / weights.sum()
        score_off = (head_dim + 4) * EPSILON * (np.abs(seen) @ np.abs(q)).max() * case.scale
        score_off += rounded * np.abs(q).max() * np.abs(seen).sum(axis=1).max() * case.scale
        largest = np.abs(mix(values[begin:end]) if case.kv == "k8v4" else values[begin:end]).max()
        off[r] = largest * (2 * score_off + (end - begin + 16) * 2 * EPSILON + 64 * rounded)
    return out, off


def assert_same_bits(a: Floats, b: Floats) -> None:
    np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize(("kv", "head_dim"), SHAPES)
def test_near_float64_with_the_same_bits_on_every_instruction_set(
    all_kernels: list[Any], kv: str, head_dim: int
) -> None:
    for rows, times in ((1, 1), (3, 1), (16, 1000), (150, 1)):  # also with scores far apart
        case = random_case(kv, rows, head_dim)
        case.q *= times
        (expected, off), portable = exact(case), attend(all_kernels[-1], case)
        assert (np.abs(portable - expected) <= off).all()
        for kernels in all_kernels[:-1]:
            assert_same_bits(attend(kernels, case), portable)


@pytest.mark.parametrize(("kv", "head_dim"), SHAPES)
def test_put_key_and_put_value_layout(all_kernels: list[Any], kv: str, head_dim: int) -> None:
    for kernels in all_kernels:
        rng = np.random.default_rng(head_dim)
        keys, values = rng.standard_normal((2, 48, head_dim)).astype(np.float32) * np.float32(1e-3)
        case = Case(kv, pack(kv, keys, values), keys, np.zeros(0, np.int32), np.zeros(0, np.int32))
        for position in (0, 15, 16, 47):
            keys[position], values[position] = rng.standard_normal((2, head_dim))
            kernels.put_key(ctypes.byref(case.struct), head_dim, position, address(keys[position]))
            kernels.put_value(ctypes.byref(case.struct), head_dim, position, address(values[position]))
        for found, expected in zip(case.cached, pack(kv, keys, values), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kv", FORMS)
class TestEveryFormat:
    """All formats of the KV cache, on every instruction set of this processor."""

    def test_row_does_not_depend_on_other_rows(self, kernels: Any, kv: str) -> None:
        case = random_case(kv, 70, 80 if kv == "f16" else 96)
        single_rows = np.concatenate([attend(kernels, case, slice(r, r + 1)) for r in range(70)])
        for width in (*range(2, 33), 70):
            for first in {0, min(5, 70 - width)}:
                rows = slice(first, first + width)
                assert_same_bits(attend(kernels, case, rows), single_rows[rows])

    def test_unseen_keys_have_no_influence(self, kernels: Any, kv: str) -> None:
        case = random_case(kv, 24, 64)
        expected = attend(kernels, case)
        for r in range(24):
            unseen = np.ones(CAPACITY, bool)
            unseen[case.begin[r] : case.end[r]] = False
            stale = case.copied()
            spoil(stale, unseen)
            assert_same_bits(attend(kernels, stale)[r], expected[r])

    def test_nan_and_infinity_reach_the_rows_that_see_them(self, kernels: Any, kv: str) -> None:
        at = 100
        for name, wrong in (("put_key", np.nan), ("put_key", np.inf), ("put_value", np.nan), ("put_value", np.inf)):
            case = random_case(kv, 24, 64)
            case.q = np.abs(case.q)
            expected = attend(kernels, case)
            getattr(kernels, name)(ctypes.byref(case.struct), 64, at, address(np.full(64, wrong, np.float32)))
            out, sees = attend(kernels, case), (case.begin <= at) & (at < case.end)
            assert 0 < sees.sum() < 24
            assert not np.isfinite(out[sees]).any()
            assert_same_bits(out[~sees], expected[~sees])
        case = random_case(kv, 12, 64)
        expected = attend(kernels, case)
        case.q[5, 7] = np.nan
        out, others = attend(kernels, case), np.arange(12) != 5
        assert np.isnan(out[5]).all()
        assert_same_bits(out[others], expected[others])

    @pytest.mark.nightly
    def test_the_last_keys_of_a_long_context(self, kernels: Any, kv: str) -> None:
        head_dim, last, moved = 256, CAPACITY, 510 * 512  # whole parts of the keys, so that the bits stay
        capacity = last + moved
        short = random_case(kv, 2, head_dim, last)
        cached = [np.zeros((len(array) * capacity // last, *array.shape[1:]), array.dtype) for array in short.cached]
        for array, part in zip(cached, short.cached, strict=True):
            at = moved * len(part) // last
            array[at : at + len(part)] = part
        long = replace(
            short, cached=tuple(cached), begin=short.begin + np.int32(moved), end=short.end + np.int32(moved)
        )
        assert_same_bits(attend(kernels, long), attend(kernels, short))
