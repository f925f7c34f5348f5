"""Attention in the interpreter: numbers at the edges (see test_cases for the definition), and the bits of identity."""

import numpy as np
import pytest
import torch

from localdflash.backends.cuda.proof.calls import Arguments
from localdflash.kernels.cuda.attention import HALVES_OF_INT8, Scratch
from tests.gpu import test_kernels
from tests.gpu.case import CPU
from tests.kernels.cuda.ptx_arithmetic import run_ptx
from tests.kernels.cuda.test_cases import CASES, check, definition
from tests.support.interpreter import ordered_dot, reversed_programs


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("attention block 300 0 torch.float16", {"block": 8}),
        ("attention chain 250 0 torch.int8", {"start": torch.tensor([0], dtype=torch.int32)}),
    ],
)
def test_blocks_of_fewer_rows_and_an_empty_context(name: str, changes: Arguments) -> None:
    case = CASES[name]
    check(
        case.run(CPU, lambda given: given.update(changes)), definition(case, lambda given: given.update(changes)), 4e-3
    )


def test_small_values_and_scores_far_below_zero_keep_their_precision() -> None:
    """Weights times a scale of 1e-5 would be subnormal in float16; nothing is compared with zero on the way."""

    def shrink(given: Arguments) -> None:
        given["cache"].v_scale.mul_(1e-3)

    def lower(given: Arguments) -> None:
        given["q"].fill_(8)
        given["cache"].k.abs_().mul_(-8)

    for name, change in (("attention chain 250 0 torch.int8", shrink), ("attention chain 250 0 torch.float16", lower)):
        check(CASES[name].run(CPU, change), definition(CASES[name], change), 4e-3)


def test_neither_two_runs_nor_the_order_of_arrival_nor_the_number_of_chunks_launched_show() -> None:
    case = CASES["attention chain 250 0 torch.float16"]
    once = case.run(CPU)
    with reversed_programs():
        again = case.run(CPU, lambda given: given.update(splits=9, scratch=Scratch(CPU, 4, 64, 9)))
    assert all(torch.equal(again[name], tensor) for name, tensor in once.items())


@pytest.mark.parametrize("dtype", [torch.int8, pytest.param(torch.float16, marks=pytest.mark.nightly)], ids=str)
def test_a_row_of_a_block_is_plain_decoding(dtype: torch.dtype) -> None:
    """Across the border of a chunk."""
    case = CASES[f"attention chain 250 0 {dtype}"]
    for t in (5, 6):
        with ordered_dot():
            test_kernels.test_block_attention_matches_single_token_decoding(case, t, CPU)


def test_the_assembly_that_unpacks_int8() -> None:
    """The interpreter has no inline assembly, so that its text is emulated, on every code in every place."""
    codes = np.stack([np.roll(np.arange(256, dtype=np.uint8), i) for i in range(4)], 1).reshape(-1)
    out = run_ptx(HALVES_OF_INT8.value, **{"$2": codes.view(np.uint32)})
    got = np.stack((out["$0"], out["$1"]), 1).reshape(-1)
    assert np.array_equal(got.view(np.float16), codes.view(np.int8).astype(np.float16))
