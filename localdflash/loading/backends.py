"""Load pairs on a named backend. A backend is imported when the first pair is loaded on it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from localdflash.backends.cuda.choices import VARIABLE
from localdflash.backends.cuda.device import describe_error, free_unused_memory, missing_tools, require_installed
from localdflash.base import extras
from localdflash.base.errors import LocaldflashError, NoDevice, UsageError
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running

T = TypeVar("T")
EXTRAS: Mapping[Runner, extras.Extra] = {"llama.cpp": "llama", "torch": "torch"}


def check_device(options: Options) -> None:
    """Raise UsageError if the requested backend cannot use the requested device."""
    backend, device = options.backend, options.device
    is_cpu_backend = backend in ("cpu", "torch")
    if (backend == "cuda" and device == "cpu") or (is_cpu_backend and device not in ("auto", "cpu")):
        other = "cpu" if device == "cpu" else "cuda"
        raise UsageError(f"--device {device}: not available with --backend {backend}; use {other} or llama.cpp")


def load_on(backend: Runner, files: LocalPair, options: Options) -> Running:
    """Load a pair on a backend; raises MissingExtra, and the errors of the backend's `load`."""
    if extra := EXTRAS.get(backend):
        extras.require(extra, f"backend {backend}")
    match backend:
        case "cpu":
            from localdflash.backends.cpu.load_cpu import load
        case "cuda":
            load = _load_on_cuda
        case "llama.cpp":
            from localdflash.backends.llamacpp.load_llamacpp import load
        case "torch":
            from localdflash.backends.reference.load_reference import load
    return load(files, options)


def _load_on_cuda(files: LocalPair, options: Options) -> Running:
    """Load a pair on the CUDA engine; see `call_cuda`."""

    def load() -> Running:
        from localdflash.backends.cuda.load_cuda import load
        from localdflash.backends.cuda.runner import device_errors

        forced = os.environ.get(VARIABLE, "")
        with device_errors():
            return load(files, replace(options, cuda_ops=forced or options.cuda_ops))

    return call_cuda(load)


def call_cuda(call: Callable[[], T]) -> T:
    """Return the result of a call of the CUDA engine; errors of its tools become NoDevice, except `DeviceError`."""
    require_installed()
    try:
        return call()
    except LocaldflashError:
        raise
    except Exception as error:
        reason = describe_error(error)
    # Outside the except block, so that the failed call's frames, which hold GPU memory, are already free.
    free_unused_memory()
    raise NoDevice(missing_tools() or f"CUDA engine: cannot start ({reason}); run `localdflash doctor`")
