"""What the compiler makes of every kernel for RTX 30, 40, 50 and H200, checked without a GPU.

Another process compiles (see the package aot beside this file), since here Triton was imported as an interpreter. Counts
of instructions screen for regressions; they predict no time. Limits that issue 3 names are round; the others lie a few
percent above what was measured with triton 3.9.0.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test waits for the compilers

CAPABILITIES = (86, 89, 90, 120)
SHARED_LIMIT = {86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}  # bytes that one block may ask for
# What no kernel of ours ever writes while the model runs, and which may thus be read before griddepcontrol.wait.
CONSTANT = {"base_ptr", "high_ptr", "scale_ptr", "supers_ptr", "minimum_ptr", "gain", "gain_ptr"}
# Warp instructions of the main loop for 4 KiB of weights, or of keys and values.
BUDGET = {
    "matmul int4": 600,
    "fp4 mx": 300,
    "fp4 nv": 300,
}
FP16 = ".f32.f16.f16"
MMA = {"fp4 mx": "kind::mxf4nvf4.block_scale.scale_vec::2X", "fp4 nv": "kind::mxf4nvf4.block_scale.scale_vec::4X"}
REFUSED = {("attention fp8", 86)}  # e4m3 came with compute capability 8.9
TICKETS = {"_matmul", "_head", "_top_k", "_lookup", "_fp4_matmul"}  # kernels that end in a last-arriver reduction

Facts = dict[str, Any]
PLAIN = [
]


@pytest.fixture(scope="module")
def facts(pytestconfig: pytest.Config) -> dict[str, dict[str, list[Facts] | str]]:
    """By case and capability, what is known about each kernel of the case."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "TRITON_CACHE_DIR": str(pytestconfig.cache.mkdir("triton")),
        "TRITON_DEFAULT_FP_FUSION": "1",  # triton 3.9 says that this default will change
    }
    command = [sys.executable, "-m", "tests.kernels.aot"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
