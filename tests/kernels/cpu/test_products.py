"""Products of quantized rows with packed weights: exact integers, the formula bit by bit, independent rows."""

from typing import Any

import numpy as np
import pytest

from tests.kernels.cpu.quantized import (
    BY_GROUP,
    FORMS,
    GROUP,
    PANEL,
    Activations,
    Array,
    Packed,
    Weights,
    by_groups,
    formula,
    product,
    random_activations,
    random_weights,
    terms,
)

LARGE = 2**24  # whole numbers below it are floats


def bits(array: Array) -> Array:
    """Floats as integers: -0 is not 0, and a NaN is itself."""
    return array.view(np.int32)


@pytest.mark.parametrize("kind", FORMS)
class TestEveryKind:
    """Every packed format, on every instruction set of this processor."""

    def test_integers_are_exact(self, all_kernels: list[Any], kind: str) -> None:
        random = np.random.default_rng(0)
        weights = random_weights(kind, 48, 512, random, whole=True)
        x = random_activations(7, 512, random, whole=True)
        expected = terms(weights, x)
        assert np.abs(expected).sum(0).max() < LARGE
        k = 256
        codes = np.repeat(np.arange(FORMS[kind].codes, dtype=np.uint8)[:, None], k, 1)  # a channel for each code
        every = random_weights(kind, len(codes), k, random, whole=True)
        one = np.full_like(every.scale, 128 if kind == "MXFP4" else 1)
        every = Weights(kind, codes, one, every.minimum, every.d, every.dmin)
        for kernels in all_kernels:
            assert np.array_equal(product(kernels, weights, x), expected.sum(0))
            for pattern in ((127,), (-127,), (-127, 127, 127, -127), (0,)):
                row = np.resize(np.array(pattern, np.int8), k)
                ends = Activations(np.stack([row] * 5), np.ones((5, k // GROUP), np.float32))
                assert np.abs(exact := terms(every, ends)).sum(0).max() < LARGE
                assert np.array_equal(product(kernels, every, ends)[:, : len(codes)], exact.sum(0))

    def test_bits_are_those_of_the_formula(self, all_kernels: list[Any], kind: str) -> None:
        random = np.random.default_rng(2)
        odd = (32, 64, 96, 416) if kind in BY_GROUP else (256, 768)
        for n, rows, k in ((80, 9, 1024), *((16, 3, k) for k in odd)):
            weights, x = random_weights(kind, n, k, random), random_activations(rows, k, random)
            exact, wanted = terms(weights, x), formula(weights, x)
            # a term is rounded three times at most: two products of scales and the sum
            assert (np.abs(wanted - exact.sum(0)) <= (len(exact) + 3) * 2.0**-24 * np.abs(exact).sum(0)).all()
            for kernels in all_kernels:
                assert np.array_equal(bits(product(kernels, weights, x)), bits(wanted)), k

    def test_a_row_is_the_same_among_any_others(self, all_kernels: list[Any], kind: str) -> None:
        random = np.random.default_rng(4)
        weights, x = random_weights(kind, 32, 512, random), random_activations(64, 512, random)
        for kernels in all_kernels:
            alone = np.concatenate([product(kernels, weights, x.row(row)) for row in range(64)])
            for rows in [*range(1, 18), 31, 32, 33, 64]:
                assert np.array_equal(bits(product(kernels, weights, x.first(rows))), bits(alone[:rows])), rows

    def test_parts_of_the_panels_and_unaligned_weights(self, all_kernels: list[Any], kind: str) -> None:
        random = np.random.default_rng(5)
        weights, x = random_weights(kind, 90, 256, random), random_activations(6, 256, random)
        unaligned = Packed(weights)
        room = np.zeros(unaligned.codes.size + 1, np.uint8)
        room[1:] = unaligned.codes.reshape(-1)
        unaligned.codes = room[1:]
        for kernels in all_kernels:
            whole = product(kernels, weights, x)
            assert whole.shape == (6, 96)
            assert not whole[:, 90:].any()  # the last panel is padded with zeros
            assert np.array_equal(whole[:, :90], formula(weights, x))
            for first, last in ((0, 1), (2, 5), (5, 6), (3, 3)):
                assert np.array_equal(
                    product(kernels, weights, x, (first, last)), whole[:, PANEL * first : PANEL * last]
                )
            assert np.array_equal(product(kernels, weights, x, packed=unaligned), whole)

    def test_zeros_give_zeros_and_a_nan_stays_in_its_row(self, all_kernels: list[Any], kind: str) -> None:
        random = np.random.default_rng(7)
        weights, clean = random_weights(kind, 32, 512, random), random_activations(4, 512, random)
        x = Activations(clean.codes.copy(), clean.scales.copy())
        x.codes[1], x.scales[1] = 0, 0
        x.codes[2, 64:96], x.scales[2, 2] = 0, np.nan  # as a group that was not finite is quantized
        for kernels in all_kernels:
            out = product(kernels, weights, x)
            assert not out[1].any()
            assert np.isnan(out[2]).all()
            assert np.array_equal(bits(out[[0, 3]]), bits(product(kernels, weights, clean)[[0, 3]]))


def test_largest_sums_of_sixteen_inputs(kernels: Any) -> None:
    """Codes, scales and activations of Q6_K at their ends: the sums are still whole floats."""
    n, k = 16, 256
    for code, s0, s1 in ((0, -128, -128), (63, -128, 127), (0, 127, -128)):
        scale = np.tile(np.array([s0, s1], np.int8), (n, k // 32))
        weights = Weights("Q6_K", np.full((n, k), code, np.uint8), scale, d=np.full((n, 1), 2.0**-10, np.float16))
        x = Activations(np.full((2, k), -127, np.int8), np.ones((2, k // GROUP), np.float32))
        assert np.abs(by_groups(weights, x)).max() < LARGE
        assert np.array_equal(product(kernels, weights, x), formula(weights, x))


def test_exponents_at_their_ends(kernels: Any) -> None:
    """The smallest scales of MXFP4 are subnormal; the sum of a group is exact at any."""
    random = np.random.default_rng(11)
    weights, x = random_weights("MXFP4", 32, 32, random), random_activations(3, 32, random, whole=True)
    for exponent in (0, 1, 2, 128, 234):
        weights.scale[...] = exponent
        exact = terms(weights, x).sum(0)
        assert np.array_equal(exact.astype(np.float32), exact)
        assert exact.any()
        assert np.array_equal(product(kernels, weights, x), exact)


def test_writes_nothing_but_its_panels(kernels: Any) -> None:
    random = np.random.default_rng(6)
    weights, x = random_weights("Q8_0", 64, 64, random), random_activations(5, 64, random)
    out = product(kernels, weights, x, (1, 3), margin=8)
    assert np.array_equal(out[1:-1, 8:40], product(kernels, weights, x)[:, 16:48])
    out[1:-1, 8:40] = out[0, 0]
    assert (out == out[0, 0]).all()


def test_peak_does_the_work(kernels: Any) -> None:
    results = {count: kernels.peak(count) for count in (16, 160, 1600)}
    assert len(set(results.values())) == 3
    assert kernels.peak(160) == results[160]
