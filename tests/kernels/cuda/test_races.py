"""Compiled kernels with programs in random order and interleaved, which see only synchronised stores of each other.

Kernel tests with more than one program run in another process, since in this one Triton is an interpreter. The table
names every kernel of the package.
"""

import re
from pathlib import Path

import pytest

from tests.kernels.cuda.ptx_faults import FAULTS
from tests.support.compiler import ROOT, run_kernel_tests

# Test file, selected tests, and the kernels that they launch.
RUNS = {
    ("cases", "empty_part and matmul"): ("_matmul",),
    ("cases", "empty_part and residual"): ("_residual",),
    ("qkv", "empty_part"): ("_qkv",),
    ("cases", "empty_part and swiglu"): ("_swiglu",),
    ("dense", "q6_k or q4_k or nvfp4"): ("_dense",),
    ("head", "ties_inside"): ("_head",),
    ("markov", "short_vocabulary and kernels"): ("_markov_anchor", "_markov_slot"),
    ("selector", "second_launch"): ("_top_k",),
    ("selector", "definition and 7-40 and not reference"): ("_select",),
    ("lookup", "following_tokens and not reference"): ("_lookup",),
    ("attention", "two_runs or fewer_rows"): ("attention_kernel", "merge_kernel"),
    ("cases", "definition and prompt_attention and 70 and kernel"): ("prompt_attention_kernel",),
    ("moe", "best_of_a_softmax and 100"): ("_route",),
    ("moe", "sixteenths and not reference"): ("_gate_up", "_down", "_combine"),
    ("cases", "definition and embed and kernel"): ("_embed",),
    ("cases", "definition and gather_taps and kernel"): ("_gather_taps",),
    ("cases", "definition and convolve and 160 and kernel"): ("_convolve_in", "_convolve_out"),
    ("sample", "penalised_for_its_own and 1.3-3-penalise"): ("_penalise",),
    ("sample", "large_vocabulary"): ("_scan", "_draw"),
    ("fp4", "nearest_that_its_scale or test_product and 128-2048"): ("_quantize_rows", "_fp4_matmul"),
    ("split_k", "set_back and not reference"): ("_set_back",),
    ("rounds", "committed_up and not reference"): ("_accept",),
    ("rounds", "begins or next_tokens or proposed or sixteen_more"): (
        "_begin",
        "_next_tokens",
        "_propose",
        "_caught_up",
    ),
}
LAUNCH = re.compile(r"^\s+(\w+)\[(grid|\(.*\))\]\(", re.M)


def launched() -> dict[str, bool]:
    """Return the kernels of the package, and whether each is launched with a single program."""
    sources = "\n".join(path.read_text() for path in (ROOT / "kernels" / "cuda").glob("*.py"))
    return {name: grid == "(1,)" for name, grid in LAUNCH.findall(sources)}


def test_the_table_names_every_kernel() -> None:
    assert sorted(launched()) == sorted(kernel for kernels in RUNS.values() for kernel in kernels)


def race(run: tuple[str, str], folder: Path, fault: str = "") -> tuple[int, str]:
    """Run the tests; return exit status and output. Assert that the kernels ran, with several programs."""
    name, which = run
    ran = folder / "ran"
    variables = {"CHIP": "120", "RACES": "1", "FAULT": fault, "RAN": str(ran)}
    done = run_kernel_tests(f"tests/kernels/cuda/test_{name}.py", "-k", which, **variables)
    launches = set(ran.read_text().splitlines())
    has_one_program = launched()
    assert {f"{kernel} {'alone' if has_one_program[kernel] else 'raced'}" for kernel in RUNS[run]} <= launches, (
        done.stdout[-3000:]
    )
    return done.returncode, done.stdout


def assert_numbers_are_wrong(status: int, text: str) -> None:
    """Assert that the tests failed because of wrong numbers."""
    assert status == 1, text[-3000:]
    assert set(re.findall(r"^E +(assert|\w+Error)\b", text, re.M)) <= {"assert", "AssertionError"}, text[-3000:]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(RUNS[run]))
def test_program_order_does_not_change_results(run: tuple[str, str], tmp_path: Path) -> None:
    status, text = race(run, tmp_path)
    assert status == 0, text[-3000:]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("run", [("cases", "empty_part and residual"), ("head", "ties_inside")], ids=str)
def test_injected_faults_are_detected(run: tuple[str, str], fault: str, tmp_path: Path) -> None:
    assert_numbers_are_wrong(*race(run, tmp_path, fault))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chip", ["120", "86", "90"])
@pytest.mark.parametrize("only", ["matmul or last_to_arrive or ticket or counter", "two_tiles", "prompt_attention"])
def test_compiled_kernels_match_interpreted_ones(only: str, chip: str) -> None:
    chosen = f"({only}) and not float8" if chip == "86" else only
    files = [f"tests/kernels/cuda/test_{name}.py" for name in ("cases", "split_k")]
    done = run_kernel_tests(*files, "-k", chosen, CHIP=chip)
    assert done.returncode == 0, done.stdout[-3000:]
