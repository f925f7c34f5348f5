"""Whole pairs in the shape of Qwen3-8B and Qwen3-30B-A3B compile for RTX 30 and RTX 50, in another process; of pairs
with a drafter of DSpark or DFlash 2, its block.

Triton is an interpreter in this one; see tests/kernels/cuda/aot.
"""

from functools import cache
from typing import Any

import pytest

from tests.support.compiler import facts_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]  # the first test of a chip waits for the compiler

SHARED = {86: 101_376, 120: 101_376}  # bytes that one block may ask for
Facts = dict[str, Any]
on_each = pytest.mark.parametrize("chip", [86, 120])


@cache
def compiled(chip: int) -> dict[str, Facts]:
    """Facts about each compiled pair."""
    found: dict[str, dict[str, Facts]] = facts_of("tests.kernels.cuda.aot.whole_pair", chip)
    return found[str(chip)]


def kernels(chip: int) -> list[Facts]:
    return [kernel for pair in compiled(chip).values() for kernel in pair["kernels"]]


@on_each
def test_every_kernel_of_every_way_fits(chip: int) -> None:
    found = kernels(chip)
    names = {kernel["kernel"] for kernel in found}
    assert {"_embed", "_qkv", "attention_kernel", "merge_kernel", "_residual", "_swiglu", "_head", "_accept"} <= names
    assert {"_lookup", "_gather_taps", "_propose", "_draw", "_route", "_gate_up", "_down", "_combine"} <= names
    assert {"_markov_anchor", "_markov_slot", "_convolve_in", "_convolve_out", "_top_k", "_select"} <= names
    for kernel in found:
        assert kernel["shared"] <= SHARED[chip]
        assert kernel["spills"] == 0
        assert kernel["ticket_fenced"] is not False


@on_each
def test_a_sequence_is_launches_alone(chip: int) -> None:
    """Allocations and copies of torch during capture would be gone or stale at replay."""
    assert [pair["others"] for pair in compiled(chip).values()] == [[]] * 4


@on_each
def test_variants_are_those_that_triton_compiles(chip: int) -> None:
    """Our own rules tell variants apart at load; a missing one would be compiled during an answer."""
    for pair in compiled(chip).values():
        ours, together = pair["variants"]
        assert ours == together == len(pair["kernels"])


@on_each
def test_steps_do_not_compile_anything_twice(chip: int) -> None:
    """Variants that differ by the alignment of an argument alone would cost seconds in the middle of a text."""
    assert len(compiled(chip)["dense"]["kernels"]) <= 47
    assert len(compiled(chip)["experts"]["kernels"]) <= 27
    for kind, own in (("dspark", "_markov_slot"), ("dflash2", "_select")):
        names = [kernel["kernel"] for kernel in compiled(chip)[kind]["kernels"]]
        assert names.count(own) == 1  # whatever the slot
        assert len(names) <= 20
