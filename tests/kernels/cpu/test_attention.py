"""Attention on the CPU: against numpy in float64, rows independent of each other, stale memory without influence."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.cpu.library import CacheStruct, Library, address

EPSILON = 2.0**-24
STALE = 0x7E00  # NaN as float16
Floats = NDArray[np.float32]
Positions = NDArray[np.int32]


@dataclass
class Case:
    """Rows q [rows, head_dim] that see keys begin up to end of a cache."""

    keys: NDArray[np.uint16]  # [capacity / 16, head_dim, 16]
    values: NDArray[np.uint16]  # [capacity, head_dim]
    q: Floats
    begin: Positions
    end: Positions

    @property
    def scale(self) -> float:
        """Of a score."""
        return float(self.q.shape[1] ** -0.5)


def pack_keys(keys: Floats) -> NDArray[np.uint16]:
    """[capacity, head_dim] as the cache has them."""
    capacity, head_dim = keys.shape
    halves = keys.astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(halves.reshape(capacity // 16, 16, head_dim).transpose(0, 2, 1))


def random_case(rows: int, head_dim: int, capacity: int = 320, seed: int = 0) -> Case:
    """Rows with ranges of all kinds: of one key, within a block, over several, ends in a row as those of a verify."""
    rng = np.random.default_rng(seed)
    keys, values = (rng.standard_normal((capacity, head_dim)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((rows, head_dim)).astype(np.float32) * 2
    begin = rng.integers(0, capacity, rows).astype(np.int32)
    end = rng.integers(begin + 1, capacity + 1).astype(np.int32)
    begin[::3] = 0
    end[::2] = np.maximum(begin[::2] + 1, capacity - rows + np.arange(0, rows, 2, dtype=np.int32))
    end[4::7] = begin[4::7] + 1
    return Case(pack_keys(keys), values.astype(np.float16).view(np.uint16), q, begin, end)


def attend(kernels: Any, case: Case, rows: slice = slice(None)) -> Floats:
    """[rows, head_dim]"""
    q, begin, end = (np.ascontiguousarray(array[rows]) for array in (case.q, case.begin, case.end))
    out: Floats = np.full(q.shape, np.nan, np.float32)
    cache, width = CacheStruct(address(case.keys), address(case.values)), q.shape[1]
    kernels.attend(
        ctypes.byref(cache),
        address(q),
        width,
        address(begin),
        address(end),
        len(q),
        width,
        case.scale,
        address(out),
        width,
    )
    return out


def exact(case: Case) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[rows, head_dim] in float64, and how far off [rows, 1] a sum in float32 in any order may be."""
    blocks, head_dim, _ = case.keys.shape
    keys = case.keys.transpose(0, 2, 1).reshape(blocks * 16, head_dim).view(np.float16).astype(np.float64)
    values = case.values.view(np.float16).astype(np.float64)
    out, off = np.empty(case.q.shape), np.empty((len(case.q), 1))
    for r, (begin, end) in enumerate(zip(case.begin, case.end, strict=True)):
        q, seen = case.q[r].astype(np.float64), keys[begin:end]
        scores = seen @ q * case.scale
        weights = np.exp(scores - scores.max())
        out[r] = weights @ values[begin:end] / weights.sum()
        score_off = (head_dim + 4) * EPSILON * (np.abs(seen) @ np.abs(q)).max() * case.scale
        off[r] = np.abs(values[begin:end]).max() * (2 * score_off + (end - begin + 16) * 2 * EPSILON)
    return out, off


def assert_same_bits(a: Floats, b: Floats) -> None:
    """Of numbers."""
    np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 150])
def test_as_in_float64(kernels: Any, head_dim: int, rows: int) -> None:
    case = random_case(rows, head_dim)
    expected, off = exact(case)
    assert (np.abs(attend(kernels, case) - expected) <= off).all()


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_every_instruction_set_gives_the_same_bits(kernels: Any, portable: Any, head_dim: int) -> None:
    case = random_case(33, head_dim)
    assert_same_bits(attend(kernels, case), attend(portable, case))


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_a_row_is_the_same_alone_and_among_any_others(kernels: Any, head_dim: int) -> None:
    case = random_case(70, head_dim)
    alone = np.concatenate([attend(kernels, case, slice(r, r + 1)) for r in range(70)])
    assert_same_bits(attend(kernels, case), alone)
    for width in range(2, 33):
        for first in (0, 5):
            rows = slice(first, first + width)
            assert_same_bits(attend(kernels, case, rows), alone[rows])


@pytest.mark.parametrize("rows", [1, 5, 24])
def test_what_a_row_does_not_see_has_no_influence(kernels: Any, rows: int) -> None:
    case = random_case(rows, 64)
    expected = attend(kernels, case)
    for r in range(rows):
        seen = np.zeros(len(case.values), bool)
        seen[case.begin[r] : case.end[r]] = True
        keys = np.where(seen.reshape(-1, 1, 16), case.keys, np.uint16(STALE))
        values = np.where(seen[:, None], case.values, np.uint16(STALE))
        stale = Case(keys, values, case.q, case.begin, case.end)
        assert_same_bits(attend(kernels, stale)[r], expected[r])


@pytest.mark.parametrize("spoilt", ["keys", "values"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_shows_in_the_rows_that_see_it(kernels: Any, spoilt: str, wrong: float) -> None:
    case, at = random_case(24, 64), 100
    expected = attend(kernels, case)
    half = np.float16(wrong).view(np.uint16)
    if spoilt == "keys":
        case.keys[at // 16, :, at % 16] = half
        case.q = np.abs(case.q)
        expected = attend(kernels, case)
    else:
        case.values[at] = half
    out = attend(kernels, case)
    sees = (case.begin <= at) & (at < case.end)
    assert sees.any()
    assert not sees.all()
    assert not np.isfinite(out[sees]).any()
    assert_same_bits(out[~sees], expected[~sees])


def test_a_query_that_is_no_number_spoils_its_own_row_only(kernels: Any) -> None:
    case = random_case(12, 64)
    expected = attend(kernels, case)
    case.q[5, 7] = np.nan
    out = attend(kernels, case)
    assert np.isnan(out[5]).all()
    others = np.arange(12) != 5
    assert_same_bits(out[others], expected[others])


@pytest.mark.parametrize("key", [0, 15, 16, 63, 64, 127, 319])
def test_one_key_gives_its_value(kernels: Any, key: int) -> None:
    case = random_case(7, 80)
    case.begin[:], case.end[:] = key, key + 1
    expected = case.values[key].view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(attend(kernels, case), np.tile(expected, (7, 1)))


@pytest.mark.parametrize(("begin", "end"), [(0, 64), (1, 64), (0, 65), (63, 65), (64, 128), (15, 17), (48, 320)])
def test_edges_of_blocks(kernels: Any, begin: int, end: int) -> None:
    case = random_case(6, 64)
    case.begin[:], case.end[:] = begin, end
    expected, off = exact(case)
    assert (np.abs(attend(kernels, case) - expected) <= off).all()


def test_scores_far_apart(kernels: Any) -> None:
    case = random_case(8, 64)
    case.q *= 1000
    expected, off = exact(case)
    assert (np.abs(attend(kernels, case) - expected) <= off).all()


def test_the_last_keys_of_a_long_context(kernels: Any) -> None:
    head_dim, capacity, last = 256, 262144, 320
    short = random_case(2, head_dim, last)
    keys, values = np.zeros((capacity // 16, head_dim, 16), np.uint16), np.zeros((capacity, head_dim), np.uint16)
    keys[-last // 16 :], values[-last:] = short.keys, short.values
    moved = capacity - last  # whole blocks, so that the bits stay
    long = Case(keys, values, short.q, short.begin + np.int32(moved), short.end + np.int32(moved))
    assert_same_bits(attend(kernels, long), attend(kernels, short))


def test_only_the_heads_of_wider_rows_are_read_and_written(kernels: Any) -> None:
    case = random_case(9, 64)
    expected = attend(kernels, case)
    q, out = np.full((9, 200), np.nan, np.float32), np.full((9, 100), 7, np.float32)
    q[:, :64] = case.q
    cache = CacheStruct(address(case.keys), address(case.values))
    ranges = address(case.begin), address(case.end)
    kernels.attend(ctypes.byref(cache), address(q), 200, *ranges, 9, 64, case.scale, address(out), 100)
    assert_same_bits(np.ascontiguousarray(out[:, :64]), expected)
    assert (out[:, 64:] == 7).all()


@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_keys_and_values_are_put_in_their_places(kernels: Any, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    keys, values = (np.full((48, head_dim), np.nan, np.float32) for _ in range(2))
    packed, put_values = pack_keys(keys), values.astype(np.float16).view(np.uint16)
    cache = CacheStruct(address(packed), address(put_values))
    for position in (0, 15, 16, 47):
        keys[position], values[position] = rng.standard_normal((2, head_dim)) * 1e-3
        kernels.put_key(ctypes.byref(cache), head_dim, position, address(keys[position]))
        kernels.put_value(ctypes.byref(cache), head_dim, position, address(values[position]))
    np.testing.assert_array_equal(packed, pack_keys(keys))
    np.testing.assert_array_equal(put_values, values.astype(np.float16).view(np.uint16))


def test_all_rows_of_a_long_verify(library: Library) -> None:
    kernels = library.kernels()
    case = random_case(512, 128, 1024)
    out = attend(kernels, case)
    for r in (0, 63, 64, 300, 511):
        assert_same_bits(out[r : r + 1], attend(kernels, case, slice(r, r + 1)))
