"""The backends' loads by name. A backend is imported when something is loaded on it, and not before."""

from collections.abc import Callable
from typing import TypeVar

from localdflash.backends.cuda.device import give_back, missing_tools, told
from localdflash.base.errors import LocaldflashError, NoDevice
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running

T = TypeVar("T")


def load_on(backend: Runner, files: LocalPair, options: Options) -> Running:
    """The pair on this backend; what its `load` raises says why it cannot run there."""
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
    """The pair on the CUDA engine; see `on_cuda`."""

    def load() -> Running:
        from localdflash.backends.cuda.load_cuda import load
        from localdflash.backends.cuda.runner import device_errors

        with device_errors():
            return load(files, options)

    return on_cuda(load)


def on_cuda(call: Callable[[], T]) -> T:
    """What a call of the CUDA engine gives. What breaks below it (the driver, torch, Triton, its compiler) becomes
    NoDevice, for another backend may still run the pair; a GPU that is lost to the process stays `DeviceFailed`.
    """
    try:
        return call()
    except LocaldflashError:
        raise
    except Exception as error:
        reason = told(error)
    # From here on nothing holds the frames of the failure, and what they had on the GPU.
    give_back()
    raise NoDevice(missing_tools() or f"it could not start ({reason}): `localdflash doctor` checks what it needs")
