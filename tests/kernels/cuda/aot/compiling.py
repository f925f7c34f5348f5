"""Launchers without a GPU: every launch is compiled for a given chip and recorded instead of run."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from localdflash.kernels.cuda import matmul
from tests.kernels.cuda.aot.ptx import ticket_is_fenced, touched_before_wait
from tests.kernels.cuda.aot.sass import count, disassembled, loops, spills, undefined_uniform_registers

# Streaming multiprocessors of the chips that stand for each compute capability: RTX 3090, 4090, H200, RTX 5090.
MULTIPROCESSORS = {86: 82, 89: 128, 90: 132, 120: 170}


class _AbsentChip:
    """Fake of Triton's driver with the functions that compilation needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


class _Properties:
    """The CUDA device properties that launchers read."""

    def __init__(self, capability: int) -> None:
        self.major, self.minor = divmod(capability, 10)
        self.multi_processor_count = MULTIPROCESSORS[capability]


@contextlib.contextmanager
def compiled_for(capability: int) -> Iterator[list[CompiledKernel]]:
    """Compile and record the launches in the context for `capability` (86, 89, ...), with PDL if the chip has it."""
    kernels: list[CompiledKernel] = []
    run = JITFunction.run

    def record(self, *args, grid, warmup, **options):
        kernels.append(run(self, *args, grid=grid, warmup=True, **options))

    driver.set_active(_AbsentChip(capability))
    matmul._best_plan.cache_clear()
    chip = MULTIPROCESSORS[capability], capability == 90  # well over 100 KB of shared memory
    with (
        patch.object(JITFunction, "run", record),
        patch("localdflash.kernels.cuda.launch.has_pdl", lambda device: capability >= 90),
        patch("localdflash.kernels.cuda.launch.multiprocessors", lambda device: chip),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: divmod(capability, 10)),
        patch.object(torch.cuda, "get_device_properties", lambda device=None: _Properties(capability)),
    ):
        yield kernels
    matmul._best_plan.cache_clear()


def facts(kernel: Any) -> dict[str, Any]:
    """Return the checked properties of a compiled kernel, for JSON."""
    ptx, listing = kernel.asm["ptx"], disassembled(kernel.asm["cubin"])
    opcodes, inner = count(listing), [count(loop) for loop in loops(listing)]
    arguments = [(name, kind) for name, kind in kernel.src.signature.items() if kind != "constexpr"]
    early = [arguments[position] for position in sorted(touched_before_wait(ptx) or ())]
    return {
        "kernel": kernel.metadata.name,
        "shared": kernel.metadata.shared,
        "spills": sum(map(spills, loops(listing))),  # the others run once
        "loops": [(loop.total(), loop["HMMA"]) for loop in inner],  # instructions, matrix products among them
        "fused": opcodes["FFMA"] + 2 * opcodes["FFMA2"],  # fused multiply-adds, scalar and packed
        "undefined": undefined_uniform_registers(listing),
        "waits": "griddepcontrol.wait" in ptx,
        "ticket_fenced": ticket_is_fenced(ptx),
        "before_wait": [name for name, kind in early if kind.startswith("*")],
    }


def compile_all(compiled: Callable[[Any, int], Any], jobs: Sequence[tuple[Any, int]]) -> Iterator[Any]:
    """Call `compiled` for every job in a few processes."""
    processes = min(4, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(compiled, *zip(*jobs, strict=True))
