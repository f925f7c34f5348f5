"""The backend `auto`: the CUDA engine, else llama.cpp on a GPU, else the faster engine on the CPU."""

from dataclasses import replace

from localdflash.backends.cuda import device
from localdflash.backends.llamacpp.builds import gpu_backends
from localdflash.base.errors import DeviceError, MissingExtra, ModelError, NoDevice, OutOfMemory
from localdflash.base.machine import gpu_watch
from localdflash.loading import proof
from localdflash.loading.backends import load_on
from localdflash.loading.engine_choice import choose_engine
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running

FALLBACK_ERRORS = (NoDevice, ModelError, OutOfMemory)  # another backend is tried after these


def load_best(files: LocalPair, options: Options) -> tuple[Runner, Running]:
    """Load a pair on the first backend that runs it; a notice names the backends that failed before.

    With `options.can_evict` a full GPU raises OutOfMemory, since the daemon can unload another pair there.
    """
    reasons = list[str]()
    if proof.auto_tries_cuda(options):
        try:
            return "cuda", _on_cuda(files, options)
        except FALLBACK_ERRORS as error:
            _raise_if_unloading_helps(error, options)
            reasons.append(f"no CUDA engine: {error}")
        device.free_unused_memory()  # so that llama.cpp can use the GPU's memory
    if options.device not in ("auto", "cpu"):
        try:
            return _on_llamacpp(files, options, reasons)
        except FALLBACK_ERRORS as error:
            raise type(error)("; ".join([*reasons, str(error)])) from error
    if options.device == "auto" and options.gpu_layers and gpu_is_there() and _may_use_gpu(options, reasons):
        try:
            return _on_llamacpp(files, replace(options, device="gpu"), reasons)
        except FALLBACK_ERRORS as error:
            _raise_if_unloading_helps(error, options)
            reasons.append(f"no GPU with llama.cpp: {error}")
    return _on_host_cpu(files, replace(options, device="cpu"), reasons)


def _raise_if_unloading_helps(error: Exception, options: Options) -> None:
    if options.can_evict and isinstance(error, OutOfMemory):
        raise error


def _on_cuda(files: LocalPair, options: Options) -> Running:
    """Load a pair on the CUDA engine if its check passed; record a lost GPU, so that it is not tried again."""
    subject, verdict = proof.require_trusted(files, options)
    try:
        running = load_on("cuda", files, replace(options, cuda_ops=verdict.choices))
    except DeviceError as error:
        proof.record_lost_gpu(subject, error)
        raise
    if not verdict.choices:
        return running
    notice = f"CUDA engine with {verdict.choices}: {'; '.join(verdict.degraded)}"
    return replace(running, notices=[*running.notices, notice])


def gpu_is_there() -> bool:
    """Return whether llama.cpp sees a GPU; a build without GPU backends is not loaded."""
    if not gpu_backends():
        return False
    from localdflash.backends.llamacpp.llama_library import devices

    return bool(devices())


def _may_use_gpu(options: Options, reasons: list[str]) -> bool:
    """Return whether a GPU that was not requested may be used; after repeated crashes add a reason and return False."""
    if options.gpu_layers > 0 or (times := gpu_watch.count_crashes()) < gpu_watch.MAX_CRASHES:
        return True
    reasons.append(f"no GPU with llama.cpp: it crashed the engine {times} times today (--device gpu tries it again)")
    return False


def _on_host_cpu(files: LocalPair, options: Options, reasons: list[str]) -> tuple[Runner, Running]:
    """Load a pair on the faster CPU engine; if that fails, add the error to `reasons` and load it on llama.cpp."""
    if choose_engine(files, options).backend == "cpu":
        try:
            return "cpu", _with_notice(load_on("cpu", files, options), "the CPU engine", reasons)
        except FALLBACK_ERRORS as error:
            reasons.append(f"no CPU engine: {error}")
    try:
        return _on_llamacpp(files, options, reasons)
    except MissingExtra as error:
        raise MissingExtra("; ".join([*reasons, str(error)])) from error


def _on_llamacpp(files: LocalPair, options: Options, reasons: list[str]) -> tuple[Runner, Running]:
    return "llama.cpp", _with_notice(load_on("llama.cpp", files, options), "llama.cpp", reasons)


def _with_notice(running: Running, engine: str, reasons: list[str]) -> Running:
    """Add a notice that names the engine and the reasons against other engines, if there are any."""
    notice = f"{engine} runs this pair; {'; '.join(reasons)}" if reasons else ""
    return replace(running, notices=[notice, *running.notices])
