"""Calls of operations with the same arguments on every device, for the tests in this folder.

A case builds the keyword arguments that kernel and reference share. Shapes are those of real models on a GPU, where
the GEMMs are split along k, and small in Triton's interpreter.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.proof.calls import Arguments, copy_arguments, writable_tensors

REAL = os.environ.get("LOCALDFLASH_GPU_TESTS") == "1"
CPU = torch.device("cpu")
ROW_AXES = {"a": 0, "sums": 1, "x": 0, "q": 0, "logits": 0, "a_out": 0, "sums_out": 1, "squares_out": 1, "q_out": 0}
ROW_AXES |= {"out": 0, "y": 0}


@dataclass(frozen=True)
class Case:
    """One operation with one set of arguments; `free`: rows may be permuted, since none depends on its position."""

    name: str
    op: Callable[..., None]
    reference: Callable[..., None]
    build: Callable[[torch.device], Arguments]
    outputs: tuple[str, ...]
    rows: bool = False  # whether rows that are not live may contain NaN
    free: bool = False
    needs: tuple[int, int] = (8, 0)  # compute capability

    def lacking(self, device: torch.device) -> str:
        """Return the reason why the device cannot run the case, or ""."""
        if device.type != "cuda" or torch.cuda.get_device_capability(device) >= self.needs:
            return ""
        return f"compute capability {self.needs[0]}.{self.needs[1]} is needed"

    def run(self, device: torch.device, change: Callable[[Arguments], None] | None = None) -> dict[str, Tensor]:
        """Return the outputs of the kernel, on the CPU."""
        arguments = self.build(device)
        if change:
            change(arguments)
        self.op(**arguments)
        return self.results(arguments)

    def expected(self) -> dict[str, Tensor]:
        """Return the outputs of the reference, in float32 on the CPU."""
        arguments = self.build(CPU)
        self.reference(**arguments)
        return self.results(arguments)

    def results(self, arguments: Arguments) -> dict[str, Tensor]:
        """Return the outputs of a call by name; tensors of a dataclass separately."""
        written = writable_tensors({name: arguments[name] for name in self.outputs})
        return {name: tensor.cpu() for name, tensor in written.items()}


def built(make: Callable[[], Arguments], **by_device: Callable[[torch.device], Any]) -> Callable[..., Arguments]:
    """Return a function that builds the arguments for a device; random ones come from a fixed seed on the CPU."""

    def build(device: torch.device) -> Arguments:
        torch.manual_seed(0)
        return copy_arguments(make(), device) | {name: maker(device) for name, maker in by_device.items()}

    return build


F16, I8, F8 = torch.float16, torch.int8, torch.float8_e4m3fn


def needed(dtype: torch.dtype) -> tuple[int, int]:
    """Return the compute capability that a KV cache type needs."""
    return (8, 9) if dtype == F8 else (8, 0)


N, K, WIDE = (1000, 4096, 2560) if REAL else (200, 512, 256)
HEADS, VOCABULARY = ((32, 8, 128), 151_936) if REAL else ((2, 1, 64), 5000)
