"""What the compiler makes of every kernel for RTX 30, 40, 50 and H200, checked without a GPU.

Another process compiles (the package aot beside this file), since in this one Triton is an interpreter. Counts of
instructions screen for regressions, they predict no time. Round limits are goals; the others lie a few percent above
what triton 3.9.0 makes; 3.7.1, which torch 2.13 wants, keeps within them.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.support.compiler import facts_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]  # the first test of a chip waits for the compilers

EVERY, MOST = (86, 89, 90, 120), (86, 90, 120)
SHARED = {86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}  # bytes that one block may ask for
Limits = dict[int, float]


def limits(limit: float, capabilities: tuple[int, ...] = EVERY) -> Limits:
    """The same limit on every chip."""
    return dict.fromkeys(capabilities, limit)


# Cases with a main loop on the tensor cores: its warp instructions for 4 KiB of weights, or of keys and values.
BUDGETS: dict[str, Limits] = {
    "matmul int4": limits(600),
    "matmul q4_k": limits(690),
    "matmul q6_k": limits(1340),
    "matmul q8_0": limits(460),
    "matmul int8": limits(355, (86, 120)),
    "matmul q4_0": limits(790, (86, 120)),
    "matmul q4_1": limits(790),
    "matmul q5_k": limits(835, (86, 120)),
    "matmul mxfp4": limits(960, (86, 120)),
    "matmul nvfp4": limits(1300, (86, 120)),
    "two tiles int4": limits(725),
    "two tiles q4_k": limits(830),
    "two tiles q6_k": limits(1800),
    "two tiles q8_0": limits(545),
    "two tiles int8": limits(405, (86, 120)),
    "two tiles q4_0": limits(1030, (86, 120)),
    "two tiles q4_1": limits(1030),
    "two tiles q5_k": limits(1000, (86, 120)),
    "two tiles mxfp4": limits(1210, (86, 120)),
    "two tiles nvfp4": limits(1710, (86, 120)),
    "two tiles residual": limits(1800, MOST),
    "two tiles qkv": limits(830, MOST),
    "swiglu": limits(700, MOST),
    "residual": limits(1340, MOST),
    "qkv fp16": limits(690, MOST),
    "qkv int8": limits(700, (120,)),
    "qkv fp8": limits(700, (89, 120)),
    "head": limits(1350, MOST),
    "markov": limits(500, MOST),
    "fp4 mx": limits(300, (120,)),
    "fp4 nv": limits(300, (120,)),
    "attention fp16": limits(340),
    "attention int8": limits(955),
    "attention fp8": limits(845, (89, 90, 120)),
    "attention block": limits(330, (120,)),
    "attention window": limits(400, (120,)),
    "moe gate_up": limits(850, (90, 120)),
    "moe down": limits(860, (90, 120)),
}
OTHERS = dict.fromkeys(
    (
        *("embed", "gather_taps", "convolve", "top_k", "select", "accept", "lookup", "rounds", "set_back", "sample"),
        *("moe route", "moe combine"),
    ),
    MOST,
) | {"taken over": (120,)}
TILED = (("two tiles q4_k", "swiglu"), ("two tiles residual", "residual"), ("two tiles qkv", "qkv fp16"))
SMALL = (("int8", 86), ("int8", 89), ("int8", 120), ("fp8", 89), ("fp8", 120))
REFUSED = {("attention fp8", 86)}  # e4m3 came with compute capability 8.9
SPILLS = {
    ("head", 90): 3,
    ("fp4 nv", 120): 8,
    ("residual", 120): 2,
    ("moe down", 90): 2,
}  # loads and stores of registers by triton 3.7.1, outside of main loops
TRAPS = ("reads before it waits", "ticket without order", "shared memory", "blocking loads", "spills")
HALF_MMA = ".f32.f16.f16"
MMA = {
    "fp4 mx": "kind::mxf4nvf4.block_scale.scale_vec::2X",
    "fp4 nv": "kind::mxf4nvf4.block_scale.scale_vec::4X",
}
# Kernels that end in a reduction by the last to arrive. (_swiglu has tiles enough without splitting K.)
TICKETS = {"_matmul", "_residual", "_qkv", "_head", "_markov_slot", "_top_k", "_lookup", "_fp4_matmul", "_route"}
# What is never written while a model runs: a kernel may read it before its predecessors have finished.
CONSTANT = {"base_ptr", "high_ptr", "scale_ptr", "supers_ptr", "minimum_ptr", "gain", "gain_ptr"}

Facts = dict[str, Any]
Results = dict[str, list[Facts] | str]
PAIRS = [(name, chip) for name, chips in (BUDGETS | OTHERS).items() for chip in chips]


on_every_chip = pytest.mark.parametrize("chip", EVERY)


@cache
def compiled(chip: int) -> Results:
    """By case, what is known about each kernel that the case launches."""
    return {case: chips[str(chip)] for case, chips in facts_of("tests.kernels.cuda.aot", chip).items()}


def kernels(case: str, chip: int) -> list[Facts]:
    """Facts of a case that must compile."""
    found = compiled(chip)[case]
    assert not isinstance(found, str), found
    return found


def loop(case: str, chip: int) -> Facts:
    """Facts of the only kernel of a case that uses the tensor cores."""
    (found,) = (kernel for kernel in kernels(case, chip) if kernel["mma"])
    return found


def kernels_on(chip: int) -> Iterator[tuple[str, Facts]]:
    """The name of each case and the facts of each of its kernels."""
    for case, on in PAIRS:
        if on == chip:
            yield from ((case, kernel) for kernel in kernels(case, chip))


@on_every_chip
def test_the_table_here_names_every_case(chip: int) -> None:
    named = {*PAIRS, *REFUSED, *((f"trap: {name}", 120) for name in TRAPS)}
    assert compiled(chip).keys() == {case for case, on in named if on == chip}
    refused = (case for case, on in REFUSED if on == chip)
    assert all(compiled(chip)[case] == "refused: type fp8e4nv not supported" for case in refused)


@on_every_chip
def test_resources(chip: int) -> None:
    for case, kernel in kernels_on(chip):
        assert kernel["shared"] <= SHARED[chip], case
        assert kernel["spills"] <= SPILLS.get((case, chip), 0), case


@on_every_chip
def test_tickets_are_ordered_after_what_they_announce(chip: int) -> None:
    for case, kernel in kernels_on(chip):
        assert kernel["ticket_fenced"] is not False, case
        assert kernel["ticket_fenced"] is True or kernel["kernel"] not in TICKETS or case == "taken over", case


@on_every_chip
def test_dependent_launch(chip: int) -> None:
    for case, kernel in kernels_on(chip):
        assert kernel["pdl"] is (chip >= 90), case
        assert kernel["releases"] is (chip >= 90), case
        assert (kernel["before_wait"] is not None) is (chip >= 90), case
        assert set(kernel["before_wait"] or ()) <= CONSTANT, case


@on_every_chip
def test_main_loops(chip: int) -> None:
    for case, on in PAIRS:
        if on != chip or case not in BUDGETS:
            continue
        found = loop(case, chip)
        assert found["tiles"] >= 1, case
        assert found["per_4k"] <= BUDGETS[case][chip], case
        assert found["blocking"] == found["spilled"] == 0, case
        assert found["asynchronous"] > 0, case
        expected = MMA.get(case, HALF_MMA)
        assert any(expected in name for name in found["mma"]), case
        assert all(expected in name or HALF_MMA in name for name in found["mma"]), case  # minimums are always float16
    assert loop("matmul int4", chip)["conversions"] == 0, "no integer is converted to a float"


@pytest.mark.parametrize("chip", MOST)
def test_two_tiles_fuse_products_and_sums_as_one_does(chip: int) -> None:
    """The assembler chooses what is fused: where it chose another for two tiles, a row would be rounded otherwise."""
    for case, single in TILED:
        assert loop(case, chip)["fused"] == 2 * loop(single, chip)["fused"] > 0, case


@pytest.mark.parametrize(("case", "chip"), SMALL)
def test_small_keys_and_values_cost_at_most_twice_the_instructions(case: str, chip: int) -> None:
    small, full = loop(f"attention {case}", chip), loop("attention fp16", chip)
    assert small["loop"] / int(small["tiles"]) <= 2 * full["loop"] / int(full["tiles"])


def test_the_checks_find_what_they_look_for() -> None:
    found = {name: kernels(f"trap: {name}", 120)[0] for name in TRAPS}
    assert found["reads before it waits"]["before_wait"] == ["x_ptr"]
    assert found["ticket without order"]["ticket_fenced"] is False
    assert found["shared memory"]["shared"] > SHARED[120]
    assert found["blocking loads"]["blocking"] > 0
    assert found["spills"]["spills"] > 0
