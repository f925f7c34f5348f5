"""The inline assembly of kernels/cuda/unpack.py, emulated on every code, against arithmetic on the codes."""

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.kernels.cuda import unpack
from localdflash.kernels.cuda.planes import E2M1
from tests.kernels.cuda.ptx_arithmetic import Words, run_ptx

LOW = np.arange(1 << 16, dtype=np.uint32)
RANDOM = np.random.default_rng(0)
PAIRS: Words = (LOW | (RANDOM.permutation(LOW) << 16)).astype(np.uint32)  # every 16-bit word in both halves
OTHERS: Words = (RANDOM.permutation(LOW) | (RANDOM.permutation(LOW) << 16)).astype(np.uint32)


def fields(words: Words, i: int, bits: int) -> NDArray[np.int64]:
    return (words.view(np.uint16).astype(np.int64) >> (bits * i)) & (2**bits - 1)


def numbers(words: Words) -> NDArray[np.float64]:
    return words.view(np.float16).astype(np.float64)


@pytest.mark.parametrize("magic", [0, 0x64])
def test_codes_of_four_and_eight_bits(magic):
    four = run_ptx(unpack.raise_4_asm(magic), **{"$4": PAIRS})
    eight = run_ptx(unpack.raise_8_asm(magic), **{"$4": PAIRS, "$5": OTHERS})
    for i in range(4):
        step, code = 16 if i % 2 else 1, fields(PAIRS, i, 4)
        assert np.array_equal(four[f"${i}"].view(np.uint16), code * step + 256 * magic)
        assert np.array_equal(eight[f"${i}"].view(np.uint16), code + 16 * fields(OTHERS, i, 4) + 256 * magic)


@pytest.mark.parametrize("half", [0, 1])
def test_codes_of_six_bits(half):
    out = run_ptx(unpack.raise_6_asm(half), **{"$4": PAIRS, "$5": OTHERS})
    byte = fields(OTHERS, half, 8)
    for i, shift in enumerate((0, 4, 2, 6)):
        code = fields(PAIRS, i, 4) + 16 * (byte >> shift & 3)
        assert np.array_equal(out[f"${i}"].view(np.uint16), code * (16 if i % 2 else 1))


@pytest.mark.parametrize(("step", "codes", "zeros"), [(1, 256, (0, 8, 128)), (16, 16, (0, 8))])
def test_offset_is_subtracted(step, codes, zeros):
    code = np.arange(codes)
    raised = (1024 + step * code).astype(np.float16).view(np.uint32)
    for zero in zeros:
        out = run_ptx(unpack.affine_asm(step, zero), **{"$1": raised})
        assert np.array_equal(numbers(out["$0"]), code - zero)


def test_small_floats():
    out = run_ptx(unpack.E2M1_ASM.value, **{"$4": PAIRS})
    for i in range(4):
        assert np.array_equal(numbers(out[f"${i}"]) * unpack.unit("e2m1"), np.array(E2M1)[fields(PAIRS, i, 4)])


@pytest.mark.parametrize(("signed", "zero", "codes"), [(False, 0, 32), (True, 32, 64)])
def test_codes_times_bytes_are_rounded_once(signed, zero, codes):
    code, byte = (
        x.reshape(-1) for x in np.meshgrid(np.arange(codes), np.arange(-128, 128) if signed else np.arange(64))
    )
    pairs = (code | code[::-1] << 16).astype(np.uint32)
    bytes_ = ((byte & 255) * 0x01010101).astype(np.uint32)
    factors = run_ptx(unpack.scales_asm(signed), **{"$2": bytes_})
    exact = np.stack([(code - zero) * byte, (code[::-1] - zero) * byte[::-1]], 1).reshape(-1)
    for half in range(2):
        for register, step in (("$0", 1), ("$1", 16)):
            both = {"$2": factors[register], "$3": np.ascontiguousarray(factors[register][::-1])}
            out = run_ptx(unpack.scale_asm(half, step, zero), **{"$1": pairs * np.uint32(step)}, **both)
            assert np.array_equal(numbers(out["$0"]) * unpack.TINY.value, exact.astype(np.float16)), (half, step)


def test_every_byte_scales_its_own_tile():
    factors = run_ptx(unpack.scales_asm(signed=False), **{"$2": np.array([0x04030201, 0x08070605], np.uint32)})
    for i in range(4):
        words, step = factors["$1" if i % 2 else "$0"], 16 if i % 2 else 1
        ones = np.array([0x00010001 * step], np.uint32)
        out = run_ptx(unpack.scale_asm(i // 2, step, 0), **{"$1": ones, "$2": words[:1], "$3": words[1:]})
        assert (numbers(out["$0"]) * unpack.TINY.value).tolist() == [i + 1, i + 5]


def test_minimums_are_exact():
    size = 1 << 14
    bytes_ = RANDOM.integers(0, 64, (2, size, 4), dtype=np.uint8)
    supers = RANDOM.integers(0, 1 << 32, (2, size), dtype=np.uint32) & 0x3FFFFFFF  # upper halves 0 .. 2, subnormals too
    out = run_ptx(
        unpack.MINIMUMS_ASM.value,
        **{"$8": bytes_[0].view(np.uint32)[:, 0], "$9": bytes_[1].view(np.uint32)[:, 0]},
        **{"$10": supers[0], "$11": supers[1]},
    )
    factor = np.stack([numbers(words)[1::2] for words in supers], 1)
    for i in range(4):
        product = np.stack([bytes_[0, :, i], bytes_[1, :, i]], 1) * factor
        assert np.array_equal((numbers(out[f"${i}"]) + numbers(out[f"${4 + i}"])).reshape(-1, 2), product)
