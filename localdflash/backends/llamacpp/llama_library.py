"""Library of llama-cpp-python: logging, model loading, GPUs, and C++ symbols that its Python bindings lack.

Hidden-state features (taps) have no stable ABI: they are bound only here, and a build without them is reported.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp.builds import BACKEND
from localdflash.backends.llamacpp.placement import PROCESSOR, Device, Placement
from localdflash.base.errors import LocaldflashError, ModelError, NoDevice
from localdflash.base.machine.gpu_watch import Watch
from localdflash.models.weights.gguf import read_header

TILED = "GGML_CPU_TILED_MM"  # tiled products of 8 or more rows round differently from products of fewer rows
WARNING, ERROR = 3, 4  # ggml_log_level
PROBLEM = "error loading model: "  # prefix of llama.cpp's reason
_MESSAGES: list[str] = []
_SIZE_LISTENERS: list[list[str]] = []  # listeners of `collect_size_lines`
_MADV_DONTNEED = 4  # Linux


@api.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
def _collect(level: int, text: bytes, _user_data: object) -> None:
    if _SIZE_LISTENERS and b" MiB" in text:
        for listener in _SIZE_LISTENERS:
            listener.append(text.decode("utf-8", "replace").strip())
    if level in (WARNING, ERROR):
        _MESSAGES.append(text.decode("utf-8", "replace").strip())
        del _MESSAGES[:-20]


@cache
def initialize() -> None:
    """Initialise the library once, and collect its log for error messages instead of printing it."""
    os.environ.setdefault(TILED, "0")  # read once, at the first product
    api.llama_log_set(_collect, ctypes.c_void_p(0))
    api.llama_backend_init()
    path = os.environ.get(BACKEND)
    if path and not call_ggml("ggml_backend_load", ctypes.c_void_p, os.fsencode(path)):
        raise NoDevice(f"{BACKEND}={path}: not a backend of this llama-cpp-python; unset it, or rebuild the backend")


def call_ggml(name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of ggml through libllama: `llama_cpp._ggml` may be a second copy with its own devices."""
    function: Callable[..., Any] = api._lib[name]
    function.restype = result  # type: ignore[attr-defined]
    return function(*arguments)


def last_message() -> str:
    """Return the library's newest warning or error, to quote in an error message."""
    return _MESSAGES[-1] if _MESSAGES else "no reason given"


@contextmanager
def collect_size_lines() -> Iterator[list[str]]:
    """Collect the log lines in which the library reports memory sizes."""
    initialize()
    lines: list[str] = []
    _SIZE_LISTENERS.append(lines)
    try:
        yield lines
    finally:
        _SIZE_LISTENERS.remove(lines)


@contextmanager
def defer_interrupts() -> Iterator[list[int]]:
    """Collect SIGINTs in the yielded list and raise one at the end: in a callback it would be lost."""
    interrupts: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield interrupts
        return
    signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


def new_context(model: Any, params: Any) -> Any:
    """Return a new `llama_context` pointer; None if memory is short (see `last_message`)."""
    with defer_interrupts():
        return api.llama_init_from_model(model, params)


class _Override(ctypes.Structure):
    _fields_: ClassVar = [("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p)]


def _set_placement(params: Any, placement: Placement) -> list[Any]:
    """Set the placement of the weights; the caller keeps the returned objects alive while the model loads."""
    device_array = (ctypes.c_void_p * 2)(placement.device.handle if placement.device else None)
    params.devices = ctypes.cast(device_array, ctypes.c_void_p)
    params.n_gpu_layers = placement.layers
    pattern = rf"blk\.({'|'.join(map(str, placement.experts))})\.ffn_.*_exps".encode()
    host_buffers = call_ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)  # unmodified weights
    overrides = (_Override * 2)(_Override(pattern, host_buffers))  # zeros end the list
    if placement.experts:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return [device_array, pattern, overrides]


def load_model(
    path: Path,
    vocab_only: bool = False,
    simulate: bool = False,
    repack: bool = True,
    placement: Placement = PROCESSOR,
) -> Any:
    """Load a GGUF file after checking its header; return a `llama_model` pointer or raise ModelError.

    `simulate` allocates nothing: contexts of such a model report the memory that they would take.
    """
    read_header(path)
    initialize()
    params = api.llama_model_default_params()
    alive_objects = _set_placement(params, placement)
    params.vocab_only, params.use_extra_bufts = vocab_only, repack
    if simulate:
        params.no_alloc, params.load_mode = True, api.LLAMA_LOAD_MODE_NONE
    _MESSAGES.clear()
    with defer_interrupts() as interrupts:
        params.progress_callback = api.llama_progress_callback(lambda _done, _data: not interrupts)
        model = api.llama_model_load_from_file(os.fsencode(path), params)
    del alive_objects
    if not model:
        reasons = [line.partition(PROBLEM)[2] for line in _MESSAGES if PROBLEM in line]
        raise ModelError(f"{path}: llama.cpp cannot load this model: {reasons[0] if reasons else last_message()}")
    return model


def release_pages(path: Path) -> None:
    """Unmap a mapped file's pages from this process: repacked weights have their own memory."""
    if sys.platform == "linux":
        name = os.fsencode(os.path.realpath(path))
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[1] == b"r--s" and fields[5] == name:  # shared and read-only
                begin, end = (int(address, 16) for address in fields[0].split(b"-"))
                madvise(begin, end - begin, _MADV_DONTNEED)


def metadata(model: Any, key: str) -> str | None:
    """Return a metadata value of a model file as text; None if it is missing."""
    name = key.encode()
    size = api.llama_model_meta_val_str(model, name, None, 0)
    if size < 0:
        return None
    buffer = ctypes.create_string_buffer(size + 1)
    api.llama_model_meta_val_str(model, name, buffer, size + 1)
    return buffer.value.decode("utf-8", "replace")


@cache
def _symbol(mangled: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return an exported C++ function by its Itanium-mangled name."""
    try:
        function = getattr(api._lib, mangled)
    except AttributeError:
        raise ModelError(
            f"llama-cpp-python {version('llama-cpp-python')}: {mangled} is not exported; drafting with DFlash needs"
            " 0.3.36 or another build with layer-input taps, decoding without drafts does not"
        ) from None
    function.restype, function.argtypes = result, list(arguments)
    return function


def set_tap(context: Any, layer: int, on: bool) -> None:
    """Have every decode store the input of `layer` (the residual stream after block layer-1), or stop that."""
    _symbol(
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool
    )(context, layer, on)


def tap_reader() -> Callable[[Any, int], int | None]:
    """Return the function (context, layer) -> address of the float32 rows [decoded rows, H] of the last decode."""
    return _symbol(
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32
    )


def set_heads(context: Any, all_rows: bool, on: bool = True) -> None:
    """Have decodes store the graph's extra outputs (confidence, candidates, states) of all or of output rows."""
    _symbol("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)(
        context, on, not all_rows
    )


def heads_reader() -> Callable[[Any], int | None]:
    """Return the function (context) -> address of the float32 extra outputs [rows, H] of the last decode."""
    return _symbol("_Z26llama_get_embeddings_nextnP13llama_context", ctypes.c_void_p, ctypes.c_void_p)


def float_rows(address: int, rows: int, columns: int) -> NDArray[np.float32]:
    """View the library's float32 rows at an address without a copy; valid as long as the library's buffer."""
    memory = (ctypes.c_float * (rows * columns)).from_address(address)
    return np.frombuffer(memoryview(memory), np.float32).reshape(rows, columns)


def embedding_of(row: NDArray[np.float32]) -> Any:
    """Return a contiguous row as a `llama_embd`; the caller keeps the row alive."""
    return api.llama_embd(ctypes.cast(row.ctypes.data, ctypes.POINTER(ctypes.c_float)), 1, len(row))


def add_to_batch(batch: Any, item: int | NDArray[np.float32], position: int, output: bool = False) -> None:
    """Append a token, or a row of features, to a drafter's batch."""
    add = api.llama_batch_ext_add_token if isinstance(item, int) else api.llama_batch_ext_add_embd
    index: int = add(batch, 0, item if isinstance(item, int) else embedding_of(item))
    if index < 0:
        raise LocaldflashError(f"llama.cpp rejected a drafter's batch: {last_message()}")
    api.llama_batch_ext_set_pos(batch, index, ctypes.byref(api.llama_pos(position)))
    api.llama_batch_ext_set_output_logits(batch, index, output)


def run_batch(context: Any, batch: Any, watch: Watch) -> None:
    """Run a drafter's batch while `watch` is held."""
    with watch:
        status = api.llama_process(context, api.LLAMA_PROCESS_TYPE_DECODE, batch)
    if status:
        raise LocaldflashError(f"llama.cpp failed to draft (status {status}): {last_message()}")


def logits_reader() -> Callable[[Any], int | None]:
    """Return `llama_get_logits` with an integer result, so that a view is made once per buffer, not once per step."""
    function = ctypes.CDLL(api._lib._name)["llama_get_logits"]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return function


GPU, INTEGRATED = 1, 2  # ggml_backend_dev_type


def devices() -> Sequence[Device]:
    """Return all GPUs, best first: dedicated before integrated memory, then by size."""
    initialize()
    gpus = [_device(index) for index in range(call_ggml("ggml_backend_dev_count", ctypes.c_size_t))]
    return sorted(filter(None, gpus), key=lambda device: (device.integrated, -device.size))


def find_gpu(name: str) -> Device:
    """Return the GPU of this name, or the best one for "gpu"; raise NoDevice if there is none."""
    gpus = devices()
    for device in gpus:
        if name in ("gpu", device.name):
            return device
    names = ", ".join(device.name for device in gpus)
    hint = f"expected one of {names}" if gpus else "it sees no GPU; `localdflash doctor` lists what it needs"
    raise NoDevice(f"--device {name}: llama.cpp has no such GPU ({hint})")


def _device(index: int) -> Device | None:  # None: not a GPU
    handle = call_ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(index))
    kind = call_ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p(handle))
    if kind not in (GPU, INTEGRATED):
        return None
    free, size = ctypes.c_size_t(), ctypes.c_size_t()
    call_ggml("ggml_backend_dev_memory", None, ctypes.c_void_p(handle), ctypes.byref(free), ctypes.byref(size))
    name, description = (
        call_ggml(f"ggml_backend_dev_{what}", ctypes.c_char_p, ctypes.c_void_p(handle)).decode("utf-8", "replace")
        for what in ("name", "description")
    )
    return Device(name, description, kind == INTEGRATED, free.value, size.value, handle)
