"""The cases of tests/gpu compile here, in the sizes that they have on a GPU, with warnings as errors.

`make gpu-dry-run` does the same with every supported Triton.
"""

from pathlib import Path

import pytest
import triton

from localdflash.lab.scripts.gpu import dry_run

INSTALLED = Path(triton.__file__).parents[1]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chip", dry_run.CHIPS)
def test_every_case_compiles_for(chip: int) -> None:
    cases = dry_run.compiled("gpu_cases", INSTALLED, chip)
    assert dry_run.faults(cases, {}, chip) == []
    kernels = {kernel["kernel"] for facts in cases.values() for kernel in facts}
    assert {"_matmul", "_residual", "_qkv", "_head", "attention_kernel", "_accept", "_lookup", "_propose"} <= kernels
    assert any("float8" in name for name in cases) is (chip >= 89)


def test_what_does_not_compile_or_fit_is_named() -> None:
    kernel = {"kernel": "_head", "shared": 100_000, "spills": 0}
    cases = {"head": [kernel], "sample": "ValueError: no"}
    pairs = {"dense": {"kernels": [kernel | {"shared": 101_377}, kernel | {"spills": 3}]}}
    assert dry_run.faults(cases, pairs, 86) == [
        "sample: ValueError: no",
        "a dense pair: _head wants 101377 bytes of shared memory",
    ]
    assert dry_run.spills(cases, pairs) == ["a dense pair: _head spills registers 3 times"]


def test_the_constraints_hold_a_pair_that_a_cuda_wheel_can_have(root: Path) -> None:
    """Every CUDA wheel of torch wants one Triton, and pip refuses another."""
    lines = (root / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if line.startswith(("torch==", "triton==")))
    assert dry_run.PINNED[versions["torch"].rpartition(".")[0]] == versions["triton"]
