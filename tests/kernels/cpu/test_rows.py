"""Functions of single rows on the CPU, against numpy, and with the same bits on every instruction set."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import Library, RowsStruct, address
from tests.kernels.cpu.conftest import BUILD, SOURCES

EPSILON = 2.0**-24  # half a unit in the last place, relative
Floats = NDArray[np.float32]


class Best(ctypes.Structure):
    """See rows.h."""

    _fields_ = [("token", ctypes.c_int32), ("logit", ctypes.c_float), ("total", ctypes.c_float)]


@pytest.fixture(scope="session")
def harnesses(library: Library, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """Compile rows.cpp for the instruction sets of this processor whose float code differs."""
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    folder, loaded = tmp_path_factory.mktemp("rows"), {}
    for name in {"portable", "avx2", "avx512vnni", "neon"} & set(library.instruction_sets):
        target = folder / f"{name}.so"
        own = BUILD["instruction_sets"]()[f"isa_{name}.cpp"]
        here = str(Path(__file__).with_name("rows.cpp"))
        flags = [*BUILD["FLAGS"], "-fvisibility=default", *own, f"-I{SOURCES}", f"-DLDF_ISA={name}", "-shared"]
        subprocess.run(["c++", *flags, here, "-o", str(target)], check=True)
        loaded[name] = ctypes.CDLL(str(target))
    return loaded


def same(results: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the result, which must be bit-identical on all instruction sets except for NaN."""
    first, *others = results.values()
    for other in others:
        np.testing.assert_array_equal(other, first)
        number = ~np.isnan(first)
        np.testing.assert_array_equal(np.signbit(other[number]), np.signbit(first[number]))
    return first


def mapped(harnesses: dict[str, ctypes.CDLL], function: str, x: NDArray[Any], kind: type) -> NDArray[Any]:
    """Apply a function of the harness to x, whose size is a multiple of 16."""
    results: dict[str, NDArray[Any]] = {}
    for name, harness in harnesses.items():
        results[name] = np.empty(x.size, kind)
        getattr(harness, function)(ctypes.c_void_p(address(x)), x.size, ctypes.c_void_p(address(results[name])))
    return same(results)


def test_exponential_is_within_two_units_in_the_last_place_up_to_its_ends(harnesses: dict[str, ctypes.CDLL]) -> None:
    x = np.linspace(-88, 88, 1 << 18, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(mapped(harnesses, "exponentials", x, np.float32) - exact) / unit) < 2
    ends = [-np.inf, -3e38, -1000, -104.1, 89.1, 1000, 3e38, np.inf, np.nan, 0, -0.0, 1e-30, 0, 0, 0, 0]
    out = mapped(harnesses, "exponentials", np.array(ends, np.float32), np.float32)
    np.testing.assert_array_equal(out, [0] * 4 + [np.inf] * 4 + [np.nan] + [1] * 7)


def test_every_half_is_read_and_rounding_is_to_nearest_even(harnesses: dict[str, ctypes.CDLL]) -> None:
    every = np.arange(65536, dtype=np.uint16)
    read = mapped(harnesses, "from_halves", every, np.float32)
    np.testing.assert_array_equal(read, every.view(np.float16).astype(np.float32))
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2  # exact in float32
    around = [ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))]
    last = np.array([65504, 65519.99, 65520, 65536, 3e38, np.inf, np.nan, 1e-45], np.float32)
    x = np.concatenate([*around, last])
    x = np.concatenate([x, -x, np.zeros(-2 * x.size % 16, np.float32)])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    out = mapped(harnesses, "to_halves", x, np.uint16).view(np.float16)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out), np.signbit(expected))


def best_of(harness: ctypes.CDLL, logits: Floats, first: int = 0, function: str = "best") -> Best:
    """Return the best of the tokens first, first + 1, ...; "likeliest" omits the sum."""
    out = Best()
    getattr(harness, function)(ctypes.c_void_p(address(logits)), first, logits.size, ctypes.byref(out))
    return out


def merged(harness: ctypes.CDLL, a: Best, b: Best) -> Best:
    out = Best()
    harness.merge(ctypes.byref(a), ctypes.byref(b), ctypes.byref(out))
    return out


def test_best_of_is_the_first_highest_and_its_total(harnesses: dict[str, ctypes.CDLL]) -> None:
    for count in (1, 15, 17, 4093):
        logits = np.random.default_rng(count).standard_normal(count).astype(np.float32) * 4
        logits[count // 2] = logits[-1] = logits.max()
        actual = [best_of(harness, logits, 7) for harness in harnesses.values()]
        assert len({bytes(best) for best in actual}) == 1
        assert (actual[0].token, actual[0].logit) == (7 + int(np.argmax(logits)), logits.max())
        for harness in harnesses.values():
            without_total = best_of(harness, logits, 7, "likeliest")
            assert (without_total.token, without_total.logit, without_total.total) == (
                actual[0].token,
                actual[0].logit,
                0,
            )
        exact = np.exp(logits.astype(np.float64) - logits.max()).sum()
        assert actual[0].total == pytest.approx(exact, rel=(count / 16 + 8) * EPSILON * 2)


def test_parts_merge_to_the_same_token_in_any_order(harnesses: dict[str, ctypes.CDLL]) -> None:
    logits = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    logits[[40, 41, 70]] = 5
    for harness in harnesses.values():
        parts = [best_of(harness, logits[i : i + 32].copy(), i) for i in (0, 32, 64)]
        for a, b, c in permutations(parts):
            best = merged(harness, merged(harness, a, b), c)
            assert (best.token, best.logit) == (40, 5)
            assert best.total == pytest.approx(np.exp(logits.astype(np.float64) - 5).sum(), rel=1e-6)


def test_nan_and_infinite_logits_show_in_the_total(harnesses: dict[str, ctypes.CDLL]) -> None:
    logits = np.linspace(0, 1, 37, dtype=np.float32)
    for at in (0, 5, 16, 36):
        for what, sound in ((np.nan, False), (np.inf, False), (-np.inf, True), (3e38, True)):
            corrupted = logits.copy()
            corrupted[at] = what
            for harness in harnesses.values():
                a, b = best_of(harness, logits, 0, "likeliest"), best_of(harness, corrupted, 37, "likeliest")
                assert (b.total == 0) == sound
                assert (merged(harness, a, b).total == 0) == (merged(harness, b, a).total == 0) == sound
                if np.isnan(what):
                    a, b = best_of(harness, logits), best_of(harness, corrupted, 37)
                    assert np.isnan([b.total, merged(harness, a, b).total, merged(harness, b, a).total]).all()


def quantized(library: Library, x: Floats) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32]]:
    """Return codes, scales and sums of rows x; assert that their totals agree."""
    rows, k = x.shape
    actual: dict[str, list[NDArray[Any]]] = {}
    for name in library.instruction_sets:
        codes, scales = np.full((rows, k), 99, np.int8), np.empty((rows, k // 32), np.float32)
        sums = np.empty((rows, k // 16), np.int32)
        totals = np.empty((rows, k // 32), np.float32)
        out = RowsStruct(address(codes), address(scales), address(sums), address(totals))
        library.kernels(name).quantize(address(x), rows, k, ctypes.byref(out))
        with np.errstate(over="ignore"):  # inf, from some 1e37 on
            reference = (sums[:, 0::2] + sums[:, 1::2]).astype(np.float32) * scales
        assert np.array_equal(totals, reference, equal_nan=True)
        actual[name] = [codes, scales, sums]
    codes, scales, sums = (same({name: arrays[i] for name, arrays in actual.items()}) for i in range(3))
    return codes, scales, sums


def expected_codes(x: Floats) -> tuple[NDArray[np.float32], Floats]:
    """Return codes and scales of rows x, computed by numpy."""
    groups = x.reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=2)
    with np.errstate(all="ignore"):
        inverse = np.float32(127) / amax
        some = np.isfinite(amax) & np.isfinite(inverse)
        codes = np.where(some[..., None], np.rint(groups * inverse[..., None]), 0).astype(np.float32)
        scales = np.where(some, amax / np.float32(127), np.where(np.isfinite(amax), 0, np.nan)).astype(np.float32)
    return codes.reshape(x.shape), scales


FLOATS = st.floats(width=32) | st.floats(-100, 100, width=32)


@example([np.inf, 1.0])
@example([np.nan])
@example([1e-45, 0.0])
@example([127.0, 0.5, 1.5, -2.5, 126.5])
@example([3e38, -3e38])
@given(st.lists(FLOATS, min_size=1, max_size=70))
def test_quantized_as_numpy_does(library: Library, numbers: list[float]) -> None:
    x = np.resize(np.array(numbers, np.float32), (2, 96))
    codes, scales, sums = quantized(library, x)
    expected, expected_scales = expected_codes(x)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(sums, expected.reshape(2, -1, 16).sum(axis=2))


def run(library: Library, size: int, call: Callable[[Any, int | None], None]) -> Floats:
    """Return what `call` writes to an address, which must be the same for every instruction set."""
    results: dict[str, NDArray[Any]] = {}
    for name in library.instruction_sets:
        results[name] = np.full(size, np.nan, np.float32)
        call(library.kernels(name), address(results[name]))
    return same(results)


def test_norm(library: Library) -> None:
    for size in (16, 80, 2048):
        rng = np.random.default_rng(size)
        x, weight = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
        at = address(x), address(weight)
        out = run(library, size, lambda kernels, to: kernels.norm(*at, 1e-6, size, to))  # noqa: B023
        exact = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-6) * weight
        # The sum of squares is rounded size / 16 + 4 times, of which the root takes half; then five more roundings.
        np.testing.assert_allclose(out, exact, rtol=(size / 32 + 7) * EPSILON)


def test_rotate(library: Library) -> None:
    for head_dim in (32, 80, 128):
        rng = np.random.default_rng(head_dim)
        x, angles = rng.standard_normal(head_dim).astype(np.float32), rng.uniform(0, 7, head_dim // 2)
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second = x[: head_dim // 2], x[head_dim // 2 :]
        expected = np.concatenate([first * cosines - second * sines, second * cosines + first * sines])
        for name in library.instruction_sets:
            out = x.copy()
            library.kernels(name).rotate(address(out), address(cosines), address(sines), head_dim)
            np.testing.assert_array_equal(out, expected)


def test_swiglu(library: Library) -> None:
    gate = np.linspace(-80, 80, 1600, dtype=np.float32)
    up = np.random.default_rng(0).standard_normal(1600).astype(np.float32)
    out = run(library, 1600, lambda kernels, to: kernels.swiglu(address(gate), address(up), 1600, to))
    wide = gate.astype(np.float64)
    # Two units in the last place of the exponential, that is four roundings, and three more.
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=7 * EPSILON)


def test_clamped_swiglu(library: Library) -> None:
    rng = np.random.default_rng(5)
    gate, up = (rng.standard_normal(1600).astype(np.float32) * 20 for _ in range(2))
    gate[:4], up[:4] = (np.nan, 1, -np.inf, np.inf), (1, np.nan, 1, -np.inf)
    out = run(library, 1600, lambda kernels, to: kernels.swiglu_clamped(address(gate), address(up), 7.0, 1600, to))
    wide, raised = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    with np.errstate(over="ignore", invalid="ignore"):
        reference = wide / (1 + np.exp(-1.702 * wide)) * (raised + 1)
    assert np.isnan(out[:3]).all()
    shifted = (np.abs(raised) + 1) / np.abs(raised + 1)  # if up is near -1 its rounding error dominates
    off = (2 * np.abs(1.702 * wide) + shifted + 10) * EPSILON * np.abs(reference)  # the exponent is rounded twice
    assert (np.abs(out - reference) < off + 1e-35)[3:].all()
