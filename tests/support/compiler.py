"""Processes in which Triton compiles: in the test process it is an interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_compiled(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and environment variables at the root of the tree."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | variables
    environment["PYTHONPATH"] = str(ROOT)
    environment.pop("TRITON_DEFAULT_FP_FUSION", None)
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def run_kernel_tests(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run tests of tests/kernels/cuda with the kernels as compiled for variable CHIP; see `as_compiled`."""
    return run_compiled(
        "-m", "pytest", "-q", "-p", "tests.kernels.cuda.as_compiled", "--timeout=300", *arguments, **variables
    )


def facts_of(module: str, chip: int) -> Any:
    """Return the JSON that `python -m module CHIP` prints; warnings are errors, as on a GPU."""
    done = run_compiled("-m", module, str(chip), PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
