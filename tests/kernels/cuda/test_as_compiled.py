"""The quantized GEMM and its tickets as compiled for a chip: their tests, with the kernels' PTX run on the CPU.

Another process does it, since in this one Triton is an interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHIPS = (120, 86, 90)
TESTS = ("test_matmul.py", "test_norm.py", "test_split_k.py")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("names", [TESTS, ("test_tiles.py",)], ids=["multiply", "two tiles"])
def test_compiled_kernels_do_as_the_interpreted_ones(names: tuple[str, ...], chip: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"CHIP": str(chip), "PYTHONPATH": str(ROOT)}
    command = [
        str(Path(sys.executable).parent / "pytest"),
        "-q",
        "-p",
        "tests.kernels.cuda.as_compiled",
        "--timeout=300",
    ]
    paths = [f"tests/kernels/cuda/{name}" for name in names]
    done = subprocess.run([*command, *paths], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
