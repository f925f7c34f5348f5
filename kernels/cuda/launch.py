"""Kernel launches: on a GPU, or in Triton's interpreter, which lacks inline assembly and PDL.

Programmatic dependent launch (PDL) lets a kernel start while its predecessor drains. A kernel so launched must call
`wait` before it touches anything that a predecessor wrote, and every kernel of a chain must wait.

Triton compiles a kernel anew for other compile-time arguments, types, divisibility by 16, an integer of one, and launch
options: a `KernelLaunch` names its variant. `withheld` collects launches, so that they can be compiled before they run.
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
MULTIPROCESSORS = 128  # assumed where there is no GPU to ask
ASM = not INTERPRETED  # constexpr switch: inline assembly or plain Triton

_simplest: ContextVar[bool] = ContextVar("simplest", default=False)
_withheld: ContextVar["list[KernelLaunch] | None"] = ContextVar("withheld", default=None)


class Kernel:
    """A Triton function that is launched as `kernel[grid](...)`; inside `withheld` its launches are only noted."""

    def __init__(self, function: Any) -> None:
        self.function = function  # what `triton.jit` made
        self.signature = inspect.signature(function.fn)
        parameters = self.signature.parameters.values()
        self.constants = {each.name for each in parameters if each.annotation is tl.constexpr}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        launches = _withheld.get()
        if launches is None:
            self.function[grid](*arguments, **options)
        else:
            launches.append(KernelLaunch(self, grid, arguments, options))


@dataclass(frozen=True)
class KernelLaunch:
    """A launch with everything that it was given."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def variant(self) -> Hashable:
        """Return what the kernel is compiled for: two launches with the same variant run the same machine code."""
        kernel = self.kernel
        own = {name: value for name, value in self.options.items() if name in kernel.signature.parameters}
        bound = kernel.signature.bind(*self.arguments, **own)
        bound.apply_defaults()
        alike = _unspecialized(kernel.function)
        arguments = tuple(
            value if name in kernel.constants else _kind(value, name not in alike)
            for name, value in bound.arguments.items()
        )
        return kernel, arguments, frozenset(self.options.items() - own.items())

    def compile(self) -> None:
        """Compile the variant, or find it in Triton's cache, without launching anything."""
        self.kernel.function.warmup(*self.arguments, grid=self.grid, **self.options)


def _unspecialized(function: Any) -> set[str]:
    """Arguments of which the type alone matters."""
    if INTERPRETED:
        return set(function.kwargs.get("do_not_specialize") or ())
    return {parameter.name for parameter in function.params if parameter.do_not_specialize}


def _kind(value: object, specialized: bool) -> object:
    """Return what Triton compiles an argument for."""
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
def withheld() -> Iterator[list[KernelLaunch]]:
    """Inside, this thread's launches go into the list and nothing runs."""
    launches: list[KernelLaunch] = []
    token = _withheld.set(launches)
    try:
        yield launches
    finally:
        _withheld.reset(token)


@contextmanager
def simplest() -> Iterator[None]:
    """Inside, this thread launches kernels without dependent launch, splits over programs, or pipelines."""
    token = _simplest.set(True)
    try:
        yield
    finally:
        _simplest.reset(token)


def is_simplest() -> bool:
    """Return whether launches are to be as simple as they can be: see `simplest`."""
    return _simplest.get()


@functools.cache
def has_pdl(device: torch.device) -> bool:
    """Return whether the chip launches dependent kernels early: compute capability 9.0 and up."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@functools.cache
def multiprocessors(device: torch.device) -> tuple[int, bool]:
    """Return their number, and whether each has well over 100 KB of shared memory (data centre chips)."""
    if device.type != "cuda":
        return MULTIPROCESSORS, False
    chip = torch.cuda.get_device_properties(device)
    return chip.multi_processor_count, chip.shared_memory_per_multiprocessor > 150_000


def every_launch(device: torch.device) -> dict[str, Any]:
    """Keyword arguments of every launch on a device."""
    return launch_options(has_pdl(device) and not is_simplest())


def launch_options(dependent: bool) -> dict[str, Any]:
    """The constexpr switch `PDL`, with the launch option that goes with it; and products are fused with the sums that
    they go into, whatever the default of a Triton is: with another one numbers would change, and texts with them.
    """
    return {"PDL": dependent, "enable_fp_fusion": True} | ({"launch_pdl": True} if dependent else {})


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until everything that ran before has finished and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Let the next kernel start its independent part: called when most of the work is done."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
