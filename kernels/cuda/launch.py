"""Kernel launches: on a GPU, or in Triton's interpreter, which lacks inline assembly and PDL.

With programmatic dependent launch (PDL) a kernel starts before its predecessor has finished. Such a kernel must call
`wait` before it reads or writes memory that a predecessor wrote, and every kernel of a chain must call it.

Triton compiles a variant of a kernel for each combination of compile-time arguments, types, divisibility by 16,
integers equal to 1, and launch options; see `KernelLaunch.variant`. `collect_launches` collects launches without
running them, so that they can be compiled first.
"""

import functools
import inspect
import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MULTIPROCESSORS = 128  # assumed without a GPU
ASM = not INTERPRETED  # constexpr switch: inline assembly or plain Triton

_simplest: ContextVar[bool] = ContextVar("simplest", default=False)
_collected: ContextVar["list[KernelLaunch] | None"] = ContextVar("collected", default=None)


class Kernel:
    """Triton function that is launched as `kernel[grid](...)`; inside `collect_launches` launches are recorded."""

    def __init__(self, function: Any) -> None:
        self.function = function  # the result of `triton.jit`
        self.signature = inspect.signature(function.fn)
        parameters = self.signature.parameters.values()
        self.constants = {each.name for each in parameters if each.annotation is tl.constexpr}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        launches = _collected.get()
        if launches is None:
            self.function[grid](*arguments, **options)
        else:
            launches.append(KernelLaunch(self, grid, arguments, options))


@dataclass(frozen=True)
class KernelLaunch:
    """Launch of a kernel with its arguments and options."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def variant(self) -> Hashable:
        """Key of the compiled code: two launches with equal variants run the same machine code."""
        kernel = self.kernel
        kernel_arguments = {name: value for name, value in self.options.items() if name in kernel.signature.parameters}
        bound = kernel.signature.bind(*self.arguments, **kernel_arguments)
        bound.apply_defaults()
        unspecialized = _unspecialized(kernel.function)
        arguments = tuple(
            value if name in kernel.constants else _kind(value, name not in unspecialized)
            for name, value in bound.arguments.items()
        )
        return kernel, arguments, frozenset(self.options.items() - kernel_arguments.items())

    def compile(self) -> None:
        """Compile the variant, or load it from Triton's cache, without launching it."""
        self.kernel.function.warmup(*self.arguments, grid=self.grid, **self.options)


def _unspecialized(function: Any) -> set[str]:
    """Return the arguments for which only the type affects the compiled code."""
    if INTERPRETED:
        return set(function.kwargs.get("do_not_specialize") or ())
    return {parameter.name for parameter in function.params if parameter.do_not_specialize}


def _kind(value: object, specialized: bool) -> object:
    """Return the properties of a run-time argument that affect the compiled code; `specialized`: its value may, too."""
    match value:
        case Tensor():
            return value.dtype, value.data_ptr() % 16 == 0
        case bool() | None:
            return type(value)
        case int():
            width = "i32" if -(2**31) <= value < 2**31 else "i64"
            return (1 if value == 1 else (width, value % 16 == 0)) if specialized else width
    return type(value)


@contextmanager
def collect_launches() -> Iterator[list[KernelLaunch]]:
    """Return a context in which this thread's launches are added to the list instead of running."""
    launches: list[KernelLaunch] = []
    token = _collected.set(launches)
    try:
        yield launches
    finally:
        _collected.reset(token)


@contextmanager
def simplest() -> Iterator[None]:
    """Return a context in which this thread launches kernels without PDL, splits over programs, or pipelines."""
    token = _simplest.set(True)
    try:
        yield
    finally:
        _simplest.reset(token)


def is_simplest() -> bool:
    """Return whether launches are as simple as possible; see `simplest`."""
    return _simplest.get()


@functools.cache
def has_pdl(device: torch.device) -> bool:
    """Return whether the GPU supports PDL: compute capability 9.0 and up."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@functools.cache
def multiprocessors(device: torch.device) -> tuple[int, bool]:
    """Return the number of multiprocessors, and whether each has more than 150 KB of shared memory."""
    if device.type != "cuda":
        return MULTIPROCESSORS, False
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_multiprocessor > 150_000


def every_launch(device: torch.device) -> dict[str, Any]:
    """Return the keyword arguments of every launch on a device."""
    return launch_options(has_pdl(device) and not is_simplest())


def launch_options(dependent: bool) -> dict[str, Any]:
    """Return the constexpr switch `PDL` and the launch options, for PDL if `dependent`.

    Multiplications and additions are fused whatever the default of the Triton version is: fusion changes logits.
    """
    return {"PDL": dependent, "enable_fp_fusion": True} | ({"launch_pdl": True} if dependent else {})


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until all earlier kernels have finished and their writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Let the next kernel start; called when most of the work is done."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
