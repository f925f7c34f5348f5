"""The shared library inside llama-cpp-python: quiet logging, model loading, and the few C++ symbols that its Python
bindings leave out.

The layer-input taps are exported by the library without a stable ABI; they are bound here and nowhere else, and a
build that lacks them says so.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.errors import ModelError
from localdflash.weights.gguf import read_header

WARNING, ERROR = 3, 4  # ggml_log_level
_MESSAGES: list[str] = []


@api.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
def _collect(level: int, text: bytes, _user_data: object) -> None:
    if level in (WARNING, ERROR):
        _MESSAGES.append(text.decode("utf-8", "replace").strip())
        del _MESSAGES[:-20]


@cache
def quiet() -> None:
    """Initialise the backend once and keep its log out of the terminal; the last warnings go into error messages."""
    api.llama_log_set(_collect, ctypes.c_void_p(0))
    api.llama_backend_init()


def last_message() -> str:
    """The library's newest warning or error, for an error line of ours."""
    return _MESSAGES[-1] if _MESSAGES else "no reason given"


def load_model(path: Path, gpu_layers: int = 0, vocab_only: bool = False) -> Any:
    """A `llama_model` pointer for a GGUF file whose header was checked first; ModelError where it cannot be loaded."""
    read_header(path)
    quiet()
    params = api.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    params.vocab_only = vocab_only
    _MESSAGES.clear()
    model = api.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        reasons = [said.partition("error loading model: ")[2] for said in _MESSAGES if "error loading model: " in said]
        raise ModelError(f"{path}: llama.cpp cannot load this model: {reasons[0] if reasons else last_message()}")
    return model


@cache
def usable_cores() -> int:
    """Physical cores that this process may run on: llama.cpp's own default of 4 threads stalls where there are 2."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


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


def float_rows(address: int, rows: int, columns: int) -> NDArray[np.float32]:
    """The library's float32 rows at an address, without a copy: valid as long as the library's buffer is."""
    memory = (ctypes.c_float * (rows * columns)).from_address(address)
    return np.frombuffer(memoryview(memory), np.float32).reshape(rows, columns)


def logits_reader() -> Callable[[Any], int | None]:
    """`llama_get_logits` returning a plain address: a view is then made once per buffer instead of once per step."""
    function = ctypes.CDLL(api._lib._name)["llama_get_logits"]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return function
