"""The backends' loads by name. A backend is imported when something is loaded on it, and not before."""

from localdflash.backend.names import Runner
from localdflash.backend.options import Options
from localdflash.backend.running import Running
from localdflash.errors import LocaldflashError, NoDevice
from localdflash.pairs.pair import LocalPair


def load_on(backend: Runner, files: LocalPair, options: Options) -> Running:
    """The pair on this backend; what its `load` raises says why it cannot run there."""
    match backend:
        case "cpu":
            from localdflash.cpu.load import load
        case "cuda":
            load = _load_on_cuda
        case "llama.cpp":
            from localdflash.llamacpp.load import load
        case "torch":
            from localdflash.reference.load import load
    return load(files, options)


def _load_on_cuda(files: LocalPair, options: Options) -> Running:
    """The pair on the CUDA engine. What breaks below it (the driver, torch, Triton, its compiler) becomes NoDevice, for
    another backend may still run the pair; a GPU that is lost to the process stays `DeviceFailed`.
    """
    try:
        from localdflash.cuda.load import load

        return load(files, options)
    except LocaldflashError:
        raise
    except Exception as error:
        said = getattr(error, "error_message", "") or str(error)  # Triton's begins with the source
        reason = f"{type(error).__name__}: {said.strip().partition(chr(10))[0]}"
    # From here on nothing holds the frames of the failure, and what they had on the GPU.
    import torch

    from localdflash.cuda.device import missing_tools

    torch.cuda.empty_cache()
    raise NoDevice(missing_tools() or f"it could not start ({reason}): `localdflash doctor` checks what it needs")
