"""What `auto` means: the GPU where the CUDA engine can run the pair, else the faster engine of the processor."""

from dataclasses import replace

from localdflash.backend.names import Runner
from localdflash.backend.options import Options
from localdflash.backend.running import Running
from localdflash.cuda import device
from localdflash.errors import ModelError, NoDevice, OutOfMemory
from localdflash.loading.backends import load_on
from localdflash.loading.timing import choose
from localdflash.pairs.pair import LocalPair

UNPROVEN = "the CUDA engine has not been tried on a GPU by its authors yet; --backend llama.cpp is the proven way"
CANNOT = (NoDevice, ModelError, OutOfMemory)  # another backend may do it


def load_best(files: LocalPair, options: Options) -> tuple[Runner, Running]:
    """The pair, and the backend that runs it; a notice says why if that is not the first choice."""
    if not device.driver_present():
        return _on_processor(files, options, "")
    try:
        running = load_on("cuda", files, options)
    except CANNOT as error:
        return _on_processor(files, options, f"not the CUDA engine: {error}")
    return "cuda", _noting(running, UNPROVEN)


def _on_processor(files: LocalPair, options: Options, why: str) -> tuple[Runner, Running]:
    """The pair on the engine that is faster here; `why` says why it is not on the GPU."""
    if choose(files, options).backend == "cpu":
        try:
            running = load_on("cpu", files, options)
            return "cpu", _noting(running, why and f"the CPU engine runs this pair, {why}")
        except CANNOT as error:
            why = f"not the CPU engine: {error}"
    running = load_on("llama.cpp", files, options)
    return "llama.cpp", _noting(running, why and f"llama.cpp runs this pair, {why}")


def _noting(running: Running, line: str) -> Running:
    return replace(running, notices=[line, *running.notices])
