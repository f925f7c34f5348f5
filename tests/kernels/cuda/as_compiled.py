"""Pytest plugin: runs kernel tests as compiled for a chip instead of in Triton's interpreter.

    CHIP=120 pytest -p tests.kernels.cuda.as_compiled tests/kernels/cuda/test_cases.py

Every launch is compiled for that compute capability, and its PTX is run by `ptx_machine`: inline assembly, layouts and
matrix instructions are those of the GPU. With RACES=<seed> programs run in random order, and see only
synchronised stores of each other (`ptx_memory`). FAULT=<name> removes something from the PTX (`ptx_faults`). RAN=<file>
receives the names of the kernels that ran, and whether with several programs. The order of asynchronous copies is not
checked.
"""

import os
import random
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

os.environ.pop("TRITON_INTERPRET", None)

from localdflash.kernels.cuda import launch
from tests.kernels.cuda.aot.compiling import compiled_for
from tests.kernels.cuda.ptx_faults import FAULTS
from tests.kernels.cuda.ptx_machine import Machine

triton.knobs.runtime.interpret = False  # conftest.py asks for the interpreter
assert launch.ASM

CHIP = int(os.environ.get("CHIP", "86"))
RACES, FAULT = os.environ.get("RACES"), os.environ.get("FAULT")


@pytest.fixture(autouse=True)
def _as_compiled() -> Iterator[None]:
    machines: dict[str, Machine] = {}
    chance = random.Random(int(RACES)) if RACES else None
    ran: set[str] = set()
    with compiled_for(CHIP) as kernels:
        record = JITFunction.run

        def run(self: Any, *args: Any, grid: Any, **options: Any) -> None:
            record(self, *args, grid=grid, **options)
            kernel = kernels.pop()
            ptx = kernel.asm["ptx"]
            if ptx not in machines:
                text = FAULTS[FAULT](ptx) if FAULT else ptx
                machines[ptx] = Machine(text, 32 * kernel.metadata.num_warps, kernel.metadata.shared)
            given = {name: value for name, value in options.items() if name in self.arg_names}
            bound = self.signature.bind(*args, **given).arguments
            values = [bound[name] for name, kind in kernel.src.signature.items() if kind != "constexpr"]
            programs = grid(bound) if callable(grid) else grid
            machines[ptx].launch(programs, values, chance)
            ran.add(f"{kernel.name} {'raced' if prod(programs) > 1 else 'alone'}")

        with patch.object(JITFunction, "run", run), torch.no_grad():
            yield
    if "RAN" in os.environ:
        with Path(os.environ["RAN"]).open("a") as file:
            file.writelines(f"{name}\n" for name in ran)
