"""What `auto` means: the CUDA engine, else llama.cpp on a GPU, else the faster engine of the processor."""

from dataclasses import replace

from localdflash.backends.cuda import device
from localdflash.backends.llamacpp.builds import gpu_backends
from localdflash.base.errors import DeviceFailed, ModelError, NoDevice, OutOfMemory
from localdflash.base.machine import gpu_watch
from localdflash.loading import proof
from localdflash.loading.backends import load_on
from localdflash.loading.engine_choice import choose
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running

CANNOT = (NoDevice, ModelError, OutOfMemory)  # another backend may do it


def load_best(files: LocalPair, options: Options) -> tuple[Runner, Running]:
    """The pair, and the backend that runs it; a notice says why if that is not the first choice.

    A GPU that is named is the CUDA engine's if that has one of this name; layers that are to lie on one mean llama.cpp.
    A pair that is to be roomy goes no further than the GPU that has no room for it: another one may leave there.
    """
    why = list[str]()
    if proof.is_tried_on(options):
        try:
            return "cuda", _on_cuda(files, options)
        except CANNOT as error:
            _raise_for_room(error, options)
            why.append(f"not the CUDA engine: {error}")
        device.give_back()  # llama.cpp may want the GPU
    if options.device not in ("auto", "cpu"):
        try:
            return _on_llamacpp(files, options, why)
        except CANNOT as error:
            raise type(error)("; ".join([*why, str(error)])) from error
    if options.device == "auto" and options.gpu_layers and gpu_is_there() and _is_trusted(options, why):
        try:
            return _on_llamacpp(files, replace(options, device="gpu"), why)
        except CANNOT as error:
            _raise_for_room(error, options)
            why.append(f"not a GPU through llama.cpp: {error}")
    return _on_processor(files, replace(options, device="cpu"), why)


def _raise_for_room(error: Exception, options: Options) -> None:
    if options.roomy and isinstance(error, OutOfMemory):
        raise error


def _on_cuda(files: LocalPair, options: Options) -> Running:
    """The pair on the CUDA engine, if that was checked here; one that loses the GPU is not tried again."""
    subject = proof.trusted(files, options)
    try:
        return load_on("cuda", files, options)
    except DeviceFailed as error:
        proof.lost(subject, error)
        raise


def gpu_is_there() -> bool:
    """Whether llama.cpp sees a GPU; one that was built for processors is not loaded to be asked."""
    if not gpu_backends():
        return False
    from localdflash.backends.llamacpp.devices import devices

    return bool(devices())


def _is_trusted(options: Options, why: list[str]) -> bool:
    """Whether a GPU that nobody asked for may be used; one that keeps ending the engine is not."""
    if options.gpu_layers > 0 or (times := gpu_watch.deaths()) < gpu_watch.TOO_MANY:
        return True
    why.append(f"not a GPU through llama.cpp: it ended the engine {times} times today; --device gpu tries it again")
    return False


def _on_processor(files: LocalPair, options: Options, why: list[str]) -> tuple[Runner, Running]:
    """The pair on the engine that is faster here; `why` says why it is not on the GPU."""
    if choose(files, options).backend == "cpu":
        try:
            running = load_on("cpu", files, options)
            return "cpu", _noting(running, f"the CPU engine runs this pair, {'; '.join(why)}" if why else "")
        except CANNOT as error:
            why.append(f"not the CPU engine: {error}")
    return _on_llamacpp(files, options, why)


def _on_llamacpp(files: LocalPair, options: Options, why: list[str]) -> tuple[Runner, Running]:
    running = load_on("llama.cpp", files, options)
    return "llama.cpp", _noting(running, f"llama.cpp runs this pair, {'; '.join(why)}" if why else "")


def _noting(running: Running, line: str) -> Running:
    return replace(running, notices=[line, *running.notices])
