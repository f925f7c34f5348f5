"""A pytest plugin: the tests of kernels, run as compiled for a chip instead of in Triton's interpreter.

    CHIP=120 pytest -p tests.kernels.as_compiled tests/kernels/test_matmul.py

Every launch is compiled for that compute capability, and its PTX is run by `ptx_machine`: inline assembly, layouts and
matrix instructions are those of the GPU. The order of asynchronous copies and the race of programs are not checked.
"""

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

os.environ.pop("TRITON_INTERPRET", None)

from localdflash.kernels import launch
from tests.kernels.aot.compiling import compiled_for
from tests.kernels.ptx_machine import Machine

triton.knobs.runtime.interpret = False  # conftest.py asks for the interpreter
assert launch.ASM

CHIP = int(os.environ.get("CHIP", "86"))


@pytest.fixture(autouse=True)
def _as_compiled() -> Iterator[None]:
    machines: dict[str, Machine] = {}
    with compiled_for(CHIP) as kernels:
        record = JITFunction.run

        def run(self: Any, *args: Any, grid: Any, **options: Any) -> None:
            record(self, *args, grid=grid, **options)
            kernel = kernels.pop()
            ptx = kernel.asm["ptx"]
            if ptx not in machines:
                machines[ptx] = Machine(ptx, 32 * kernel.metadata.num_warps, kernel.metadata.shared)
            given = {name: value for name, value in options.items() if name in self.arg_names}
            bound = self.signature.bind(*args, **given).arguments
            values = [bound[name] for name, kind in kernel.src.signature.items() if kind != "constexpr"]
            machines[ptx].launch(grid(bound) if callable(grid) else grid, values)

        with patch.object(JITFunction, "run", run), torch.no_grad():
            yield
