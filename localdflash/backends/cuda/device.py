"""Detection of GPUs and their features. `require_installed` imports nothing: without a driver no torch is loaded."""

import ctypes
import gc
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from localdflash.backends.cuda import gpus
from localdflash.base import extras
from localdflash.base.errors import NoDevice
from localdflash.models.memory.fit import MemoryBudget

if TYPE_CHECKING:
    import torch


@cache
def driver_present() -> bool:
    """Return whether the NVIDIA driver's library can be loaded."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def has_native_fp4(capability: tuple[int, int]) -> bool:
    """Return whether the chip has FP4 matrix instructions that Triton uses: Blackwell RTX."""
    return capability[0] == 12


def summarize_features(capability: tuple[int, int]) -> str:
    """Return which features of a chip the engine uses, for `doctor`."""
    parts = [
        f"sm_{capability[0]}{capability[1]}",
        "mma.sync kernels",
        "dependent launches" if capability >= (9, 0) else "no dependent launches before sm_90",
        "FP8 K/V" if capability >= (8, 9) else "int8 K/V, FP8 from sm_89 on",
        "native FP4 as an option" if has_native_fp4(capability) else "FP4 weights unpacked, native from sm_120 on",
    ]
    return ", ".join(parts)


def require_installed() -> None:
    """Raise NoDevice if the NVIDIA driver, torch or Triton is not installed."""
    if not driver_present():
        raise NoDevice("no NVIDIA driver was found; install it, or use `--backend auto`")
    if module := extras.missing_module("cuda"):
        raise NoDevice(f"{module} is not installed; run `{extras.install_command('cuda')}`")


def find_gpus(name: str = "auto") -> Sequence[gpus.Gpu]:
    """Return the GPUs that match `name` (see `gpus`), at least one; NoDevice names what is missing and the remedy."""
    require_installed()
    import torch

    if torch.version.cuda is None:
        raise NoDevice(f"PyTorch {torch.__version__}: built without CUDA; install a CUDA build of torch")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise NoDevice(f"CUDA cannot start ({reason}); update the NVIDIA driver") from None
    return gpus.select_gpus(name)


def find_device(name: str = "auto") -> "torch.device":
    """Return the first of `find_gpus`."""
    return find_gpus(name)[0].device


def device_context(device: "torch.device") -> AbstractContextManager[object]:
    """Return a context in which a GPU is the thread's current device, which Triton, streams and graphs use."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def means_gpu(name: str) -> bool:
    """Return whether `--device NAME` means a GPU of this engine; other names, such as "Vulkan0", are llama.cpp's."""
    if name == "cpu" or not driver_present():
        return False
    if name in gpus.ANY_GPU or name.isdecimal() or name.upper().startswith("GPU-"):
        return True
    try:
        return bool(find_gpus(name))
    except NoDevice:
        return False


def missing_tools() -> str:
    """Return a message that names the build tool that Triton cannot find, and a remedy; "" if none is missing."""
    if os.name == "nt":  # triton-windows includes them
        return ""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton finds no C compiler; install gcc, or set the environment variable CC"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Triton finds no Python headers; install python3-dev or python3-devel"
    return ""


def describe_error(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    text = getattr(error, "error_message", "") or str(error)  # the text of Triton's errors begins with source code
    return f"{type(error).__name__}: {text.strip().partition(chr(10))[0]}"


def driver_version() -> str:
    """Return the NVIDIA driver's version from NVML, its management library, or "of unknown version (reason)"."""
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"of unknown version ({error})"


def free_unused_memory() -> None:
    """Return torch's cached, unused GPU memory to the system."""
    if torch := sys.modules.get("torch"):
        gc.collect()
        with suppress(Exception):  # after a failure the GPU or torch itself may be broken
            torch.cuda.empty_cache()


def all_gpu_memory() -> int:
    """Return the whole memory of the first of `find_gpus` in bytes; raise NoDevice if there is none."""
    device = find_device()
    import torch

    return int(torch.cuda.mem_get_info(device)[1])


def gpu_budget(name: str = "auto") -> MemoryBudget:
    """Return the free memory of the first of `find_gpus`; raise NoDevice if there is none."""
    device = find_device(name)
    from localdflash.backends.cuda.cuda_sizes import budget_of

    return budget_of(device)
