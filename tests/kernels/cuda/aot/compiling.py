"""Launchers without a GPU: every launch is compiled for a given chip and recorded instead of run."""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

# Streaming multiprocessors of the chips that stand for each compute capability: RTX 3090, 4090, H200, RTX 5090.
MULTIPROCESSORS = {86: 82, 89: 128, 90: 132, 120: 170}


class _AbsentChip:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


class _Properties:
    """As much of a CUDA device's properties as launchers ask for."""

    def __init__(self, capability: int) -> None:
        self.major, self.minor = divmod(capability, 10)
        self.multi_processor_count = MULTIPROCESSORS[capability]


@contextlib.contextmanager
def compiled_for(capability: int) -> Iterator[list[CompiledKernel]]:
    """Inside, launches go into the list, compiled for `capability` (86, 89, ...): with PDL where the chip has it."""
    kernels: list[CompiledKernel] = []
    run = JITFunction.run

    def record(self, *args, grid, warmup, **options):
        kernels.append(run(self, *args, grid=grid, warmup=True, **options))

    driver.set_active(_AbsentChip(capability))
    with (
        patch.object(JITFunction, "run", record),
        patch("localdflash.kernels.cuda.launch.has_pdl", lambda device: capability >= 90),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: divmod(capability, 10)),
        patch.object(torch.cuda, "get_device_properties", lambda device=None: _Properties(capability)),
    ):
        yield kernels
