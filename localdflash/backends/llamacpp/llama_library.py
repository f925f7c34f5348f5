"""The shared library inside llama-cpp-python: quiet logging, model loading, and the few C++ symbols that its Python
bindings leave out.

The layer-input taps are exported by the library without a stable ABI; they are bound here and nowhere else, and a
build that lacks them says so. `LOCALDFLASH_GGML_BACKEND` names a library of another of ggml's backends, compiled from
the same sources, which is loaded beside it.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp.builds import BACKEND
from localdflash.backends.llamacpp.placement import PROCESSOR, Placement
from localdflash.base.errors import ModelError, NoDevice
from localdflash.models.weights.gguf import check_header

TILED = "GGML_CPU_TILED_MM"  # products in tiles, from 8 rows on, round otherwise than those of fewer rows
WARNING, ERROR = 3, 4  # ggml_log_level
_MESSAGES: list[str] = []
_SIZES: list[list[str]] = []  # the listeners of `said_sizes`
_MADV_DONTNEED = 4  # Linux


@api.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
def _collect(level: int, text: bytes, _user_data: object) -> None:
    if _SIZES and b" MiB" in text:
        for listener in _SIZES:
            listener.append(text.decode("utf-8", "replace").strip())
    if level in (WARNING, ERROR):
        _MESSAGES.append(text.decode("utf-8", "replace").strip())
        del _MESSAGES[:-20]


@cache
def quiet() -> None:
    """Initialise the backend once and keep its log out of the terminal; the last warnings go into error messages."""
    os.environ.setdefault(TILED, "0")  # read once, at the first product
    api.llama_log_set(_collect, ctypes.c_void_p(0))
    api.llama_backend_init()
    _plug()


def _plug() -> None:
    """Load the backend that the environment names; NoDevice if that is none of this version."""
    path = os.environ.get(BACKEND)
    if path and not ggml("ggml_backend_load", ctypes.c_void_p, os.fsencode(path)):
        raise NoDevice(f"{BACKEND}={path} is no backend for this llama-cpp-python: unset it, or build it anew")


def ggml(name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of ggml: through libllama, because `llama_cpp._ggml` may hold a copy with devices of its own."""
    function: Callable[..., Any] = api._lib[name]
    function.restype = result  # type: ignore[attr-defined]
    return function(*arguments)


def last_message() -> str:
    """The library's newest warning or error, for one of our error lines."""
    return _MESSAGES[-1] if _MESSAGES else "no reason given"


@contextmanager
def said_sizes() -> Iterator[list[str]]:
    """A context that collects the lines in which the library says how much memory it takes."""
    quiet()
    lines: list[str] = []
    _SIZES.append(lines)
    try:
        yield lines
    finally:
        _SIZES.remove(lines)


@contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Collect SIGINTs in a list and raise one at the end: raised in a callback it would be lost."""
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield came
        return
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def new_context(model: Any, params: Any) -> Any:
    """A `llama_context` pointer; None if there is no memory for it (see `last_message`)."""
    with interrupts_held():
        return api.llama_init_from_model(model, params)


class _Override(ctypes.Structure):
    """`llama_model_tensor_buft_override`."""

    _fields_: ClassVar = [("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p)]


def _placed(params: Any, placement: Placement) -> list[Any]:
    """Set where the weights go; what is returned must live as long as the model is being loaded.

    An empty list of devices, and not only no layers, keeps wide decodes from being computed on a GPU all the same.
    """
    chosen = (ctypes.c_void_p * 2)(placement.device.handle if placement.device else None)
    params.devices = ctypes.cast(chosen, ctypes.c_void_p)
    params.n_gpu_layers = placement.layers
    pattern = rf"blk\.({'|'.join(map(str, placement.experts))})\.ffn_.*_exps".encode()
    unmoved = ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)  # weights as the file has them
    overrides = (_Override * 2)(_Override(pattern, unmoved))  # the second one, of zeros, ends the list
    if placement.experts:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return [chosen, pattern, overrides]


def load_model(
    path: Path,
    vocab_only: bool = False,
    simulate: bool = False,
    repack: bool = True,
    placement: Placement = PROCESSOR,
    mtp: bool = False,
) -> Any:
    """A `llama_model` pointer for a GGUF file whose header was checked first; ModelError if it cannot be loaded.

    `simulate` reads no weights and allocates nothing: contexts of such a model say how much memory they would take.
    Without `repack` the weights stay as the file has them. `mtp`: with blocks that predict tokens further ahead.
    """
    check_header(path)
    quiet()
    params = api.llama_model_default_params()
    kept = _placed(params, placement)
    params.vocab_only, params.use_extra_bufts, params.load_mtp = vocab_only, repack, mtp
    if simulate:
        params.no_alloc, params.load_mode = True, api.LLAMA_LOAD_MODE_NONE
    _MESSAGES.clear()
    with interrupts_held() as came:
        params.progress_callback = api.llama_progress_callback(lambda _done, _data: not came)
        model = api.llama_model_load_from_file(os.fsencode(path), params)
    del kept
    if not model:
        reasons = [said.partition("error loading model: ")[2] for said in _MESSAGES if "error loading model: " in said]
        raise ModelError(f"{path}: llama.cpp cannot load this model: {reasons[0] if reasons else last_message()}")
    return model


def release_pages(path: Path) -> None:
    """Unload a mapped file's pages from this process; later reads take them from the page cache.

    Weights that were repacked at load have memory of their own, and their pages of the file would count twice.
    """
    if sys.platform == "linux":
        name = os.fsencode(os.path.realpath(path))
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[1] == b"r--s" and fields[5] == name:  # shared and read-only: nothing is lost
                begin, end = (int(address, 16) for address in fields[0].split(b"-"))
                madvise(begin, end - begin, _MADV_DONTNEED)


def metadata(model: Any, key: str) -> str | None:
    """A value of a model file's metadata as text, if it is there."""
    name = key.encode()
    size = api.llama_model_meta_val_str(model, name, None, 0)
    if size < 0:
        return None
    buffer = ctypes.create_string_buffer(size + 1)
    api.llama_model_meta_val_str(model, name, buffer, size + 1)
    return buffer.value.decode("utf-8", "replace")


@cache
def _symbol(mangled: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """An exported C++ function by its Itanium-mangled name."""
    try:
        function = getattr(api._lib, mangled)
    except AttributeError:
        raise ModelError(
            f"llama-cpp-python {_version()} does not export {mangled}: drafting with DFlash needs 0.3.36 or another"
            " build with layer-input taps; plain decoding works without them"
        ) from None
    function.restype, function.argtypes = result, list(arguments)
    return function


def _version() -> str:
    from importlib.metadata import version

    return version("llama-cpp-python")


def set_tap(context: Any, layer: int, on: bool) -> None:
    """Make `context` keep the input of `layer` (the residual stream after block layer-1) of every row it decodes."""
    _symbol(
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool
    )(context, layer, on)


def tap_reader() -> Callable[[Any, int], int | None]:
    """The function (context, layer) -> address of float32 rows [decoded rows, H] of the last decode."""
    return _symbol(
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32
    )


def set_heads(context: Any, all_rows: bool, on: bool = True) -> None:
    """Make a `context` keep what its graph has beside the logits: DSpark's confidence, the candidates of DFlash 2, the
    state that another head goes on from; of all rows, or of those with logits.
    """
    _symbol("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)(
        context, on, not all_rows
    )


def heads_reader() -> Callable[[Any], int | None]:
    """The function (context) -> address of these float32 rows [rows, H] of the last decode."""
    return _symbol("_Z26llama_get_embeddings_nextnP13llama_context", ctypes.c_void_p, ctypes.c_void_p)


def float_rows(address: int, rows: int, columns: int) -> NDArray[np.float32]:
    """The library's float32 rows at an address, without a copy: valid as long as the library's buffer is."""
    memory = (ctypes.c_float * (rows * columns)).from_address(address)
    return np.frombuffer(memoryview(memory), np.float32).reshape(rows, columns)


def logits_reader() -> Callable[[Any], int | None]:
    """`llama_get_logits` returning a plain address: a view is then made once per buffer instead of once per step."""
    function = ctypes.CDLL(api._lib._name)["llama_get_logits"]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return function
