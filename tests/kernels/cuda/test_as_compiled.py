"""The quantized GEMM and its tickets as compiled for a chip: their tests, with the kernels' PTX run on the CPU."""

import pytest

from tests.support.compiler import run_kernel_tests


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chip", ["120", "86", "90"])
@pytest.mark.parametrize("names", [("matmul", "split_k"), ("cases",)], ids=["multiply", "two tiles"])
def test_compiled_kernels_do_as_the_interpreted_ones(names: tuple[str, ...], chip: str) -> None:
    only = ("-k", "two_tiles and not (qkv and float8)" if chip == "86" else "two_tiles") if names == ("cases",) else ()
    done = run_kernel_tests(*(f"tests/kernels/cuda/test_{name}.py" for name in names), *only, CHIP=chip)
    assert done.returncode == 0, done.stdout[-3000:]
