"""Binds the C++ library of the CPU engine with ctypes: its functions and the structs of formats.h and kernels.h."""

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import LocaldflashError, ModelError, NoDevice, OutOfMemory
from localdflash.base.system.descriptor import open_in_memory

MAX_ROWS = 64  # tokens in one forward pass
REINSTALL = "install a C++ compiler, then `pip install --force-reinstall --no-deps localdflash`"


class MatrixStruct(ctypes.Structure):
    """See formats.h."""

    _fields_ = [
        *((name, c_int32) for name in ("kind", "n", "k")),
        *((name, c_void_p) for name in ("codes", "scales", "supers")),
    ]


class RowsStruct(ctypes.Structure):
    """See formats.h."""

    _fields_ = [("codes", c_void_p), ("scales", c_void_p), ("sums", c_void_p), ("totals", c_void_p)]


class CacheStruct(ctypes.Structure):
    """See formats.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        ("value_bits", c_int32),
    ]


class DeltaShapeStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [(name, c_int32) for name in ("k_heads", "v_heads", "k_dim", "v_dim", "kernel")]


class DeltaNetStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [
        *((name, MatrixStruct) for name in ("mixed", "gate", "alpha", "beta")),
        *((name, c_void_p) for name in ("conv", "rate", "shift", "norm", "state", "history", "decays", "betas")),
    ]


class ConvolutionStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [("changes", MatrixStruct), ("base", c_void_p)]


class SlotHeadsStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [
        *((name, MatrixStruct) for name in ("markov_w1", "markov_w2")),
        ("confidence", c_void_p),
        ("confidence_bias", c_float),
        *((name, MatrixStruct) for name in ("predecessor", "successor", "selector")),
        ("candidates", c_int32),
        ("first", c_int32),
        ("tokens", c_void_p),
    ]


class ProgressStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [("base", c_int32), ("rows", c_int32)]


class LayerStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("attention_norm", "query_norm", "key_norm", "mlp_norm")),
        *((name, MatrixStruct) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, c_void_p) for name in ("router", "query_bias", "key_bias", "value_bias", "output_bias")),
        *((name, c_void_p) for name in ("router_bias", "gate_bias", "up_bias", "down_bias", "sinks")),
        *((name, MatrixStruct) for name in ("shared_gate", "shared_up", "shared_down")),
        ("shared_router", c_void_p),
        ("delta", POINTER(DeltaNetStruct)),
        ("attention_conv", ConvolutionStruct),
        ("mlp_conv", ConvolutionStruct),
        ("cache", CacheStruct),
        ("causal", c_int32),
        ("window", c_int32),
    ]


class ModelStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [
        *((name, c_int32) for name in ("blocks", "hidden", "heads", "kv_heads", "head_dim", "inner")),
        *((name, c_int32) for name in ("experts", "chosen", "normalise", "shared", "rotary", "gated")),
        *((name, c_int32) for name in ("vocabulary", "capacity")),
        *((name, c_float) for name in ("eps", "swiglu_limit", "embedding_scale", "logit_scale", "softcap")),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("embedding", MatrixStruct),
        ("head", MatrixStruct),
        ("norm", c_void_p),
        ("layers", POINTER(LayerStruct)),
        ("taps", c_void_p),
        ("tap_count", c_int32),
        ("fuse", MatrixStruct),
        ("fuse_norm", c_void_p),
        ("workspace", c_void_p),
        ("delta", DeltaShapeStruct),
        ("progress", POINTER(ProgressStruct)),
        ("conv_kernel", c_int32),
        ("conv_group", c_int32),
        ("slots", SlotHeadsStruct),
    ]


class PassStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [
        ("ids", c_void_p),
        ("rows", c_int32),
        ("start", c_int32),
        *((name, c_void_p) for name in ("taps", "logits", "best", "confidence", "finite")),
        ("keep_all", c_int32),
    ]


_MATRIX, _ROWS, _CACHE = POINTER(MatrixStruct), POINTER(RowsStruct), POINTER(CacheStruct)
_STRIDED = (c_void_p, c_ssize_t)  # a float matrix, and the distance between its rows in floats


def _function(*arguments: Any, result: Any = None) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)


class KernelsStruct(ctypes.Structure):
    """See kernels.h."""

    _fields_ = [
        ("name", c_char_p),
        ("quantize", _function(c_void_p, c_int32, c_int32, _ROWS)),
        ("product", _function(_MATRIX, _ROWS, c_int32, c_int32, c_int32, *_STRIDED)),
        ("attend", _function(_CACHE, *_STRIDED, c_void_p, c_void_p, c_int32, c_int32, c_float, *_STRIDED)),
        ("put_key", _function(_CACHE, c_int32, c_int32, c_void_p)),
        ("put_value", _function(_CACHE, c_int32, c_int32, c_void_p)),
        ("norm", _function(c_void_p, c_void_p, c_float, c_int32, c_void_p)),
        ("rotate", _function(c_void_p, c_void_p, c_void_p, c_int32)),
        ("swiglu", _function(c_void_p, c_void_p, c_int32, c_void_p)),
        ("swiglu_clamped", _function(c_void_p, c_void_p, c_float, c_int32, c_void_p)),
        ("forward", _function(POINTER(ModelStruct), POINTER(PassStruct), c_void_p)),
        ("inject", _function(POINTER(ModelStruct), c_void_p, c_int32, c_int32, c_void_p)),
        ("peak", _function(c_int64, result=c_int32)),
    ]


STRUCTS = (MatrixStruct, RowsStruct, LayerStruct, ModelStruct, PassStruct, KernelsStruct, DeltaNetStruct)  # see api.cpp


class Library:
    """Loaded shared library of the CPU engine; OSError if it was built from other sources."""

    def __init__(self, path: Path) -> None:
        self._dll = dll = _load_dll(path)
        dll.ldf_layout.restype, dll.ldf_layout.argtypes = c_size_t, [ctypes.c_int]
        sizes = [dll.ldf_layout(i) for i in range(len(STRUCTS))]
        if sizes != [ctypes.sizeof(struct) for struct in STRUCTS]:
            raise OSError("built from other sources")
        dll.ldf_kernels.restype, dll.ldf_kernels.argtypes = POINTER(KernelsStruct), [c_char_p]
        dll.ldf_instruction_set.restype, dll.ldf_instruction_set.argtypes = c_char_p, [ctypes.c_int]
        dll.ldf_workspace_bytes.restype = c_size_t
        dll.ldf_workspace_bytes.argtypes = [POINTER(ModelStruct), ctypes.c_int]
        dll.ldf_pool_new.restype, dll.ldf_pool_new.argtypes = c_void_p, [ctypes.c_int, c_void_p, c_int32]
        dll.ldf_pool_delete.restype, dll.ldf_pool_delete.argtypes = None, [c_void_p]
        dll.ldf_guard.restype, dll.ldf_guard.argtypes = None, [c_void_p, c_size_t, c_char_p, ctypes.c_int]
        dll.ldf_unguard.restype, dll.ldf_unguard.argtypes = None, [c_void_p]

    @property
    def instruction_sets(self) -> list[str]:
        """Instruction sets that this processor can run, best first."""
        names, name = [], self._dll.ldf_instruction_set(0)
        while name:
            names.append(name.decode())
            name = self._dll.ldf_instruction_set(len(names))
        return names

    def kernels(self, instruction_set: str = "") -> Any:
        """Return the KernelsStruct of an instruction set, by default the best; NoDevice if this processor lacks it."""
        name = instruction_set or self.instruction_sets[0]
        table = self._dll.ldf_kernels(name.encode())
        if not table:
            raise NoDevice(f"{name}: not supported by this processor (supported: {', '.join(self.instruction_sets)})")
        return table.contents

    def workspace_bytes(self, model: ModelStruct, threads: int) -> int:
        """Return the size in bytes of the workspace that a model's forward passes need."""
        return int(self._dll.ldf_workspace_bytes(ctypes.byref(model), threads))

    def new_pool(self, threads: int, cpus: list[int]) -> int:
        """Return the handle of a pool of `threads` threads: the caller, and new threads that run on `cpus`."""
        cpu_ids = np.array(cpus, np.int32)
        handle = self._dll.ldf_pool_new(threads, address(cpu_ids), len(cpus))
        if not handle:
            raise OutOfMemory(f"cannot start {threads} threads")
        return int(handle)

    def delete_pool(self, handle: int) -> None:
        """End a pool's threads and free its memory."""
        self._dll.ldf_pool_delete(handle)

    def guard(self, file: Path, buffer: mmap.mmap) -> None:
        """Make the process end with a message if `buffer` is read after its file became shorter."""
        line = f"localdflash: {file}: became shorter while it was in use; restart to pack it again\n"
        begin = address(np.frombuffer(buffer, np.uint8))
        self._dll.ldf_guard(begin, len(buffer), os.fsencode(line), ModelError.exit_code)
        weakref.finalize(buffer, self._dll.ldf_unguard, begin).atexit = False


def _load_dll(path: Path) -> ctypes.CDLL:
    """Load a library, on Linux from a copy in memory, so that replacing the file does not affect this process."""
    with suppress(OSError):  # not Linux, or executing such memory is forbidden
        copy = open_in_memory()  # never closed: the loader would mistake a reused /proc path for this file
        with open(copy, "wb", closefd=False) as file:  # raises OSError unless all is written
            file.write(path.read_bytes())
        return ctypes.CDLL(f"/proc/self/fd/{copy}")
    return ctypes.CDLL(str(path))


def address(array: NDArray[Any] | None) -> int | None:
    """Return the address of a C-contiguous array; the caller must keep the array alive."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    return array.ctypes.data


def allocate_aligned(shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Return zeros aligned to 64 bytes; the system allocates the memory when it is first used."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    zeros: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return zeros


def find_library() -> Path | None:
    """Return the path of the library that was built with the package, or None."""
    suffix = ".pyd" if sys.platform == "win32" else ".so"
    return next(iter(sorted(Path(__file__).parent.glob(f"_kernels*{suffix}"))), None)


@cache
def _load_or_explain() -> Library | str:  # str: why the library cannot be used, and a remedy
    path = find_library()
    if path is None:
        return f"it was not built with the package; {REINSTALL}"
    try:
        return Library(path)
    except (OSError, AttributeError) as error:
        return f"{os.fspath(path.name)} cannot be loaded ({error}); {REINSTALL}"


def why_unavailable() -> str:
    """Return why the library cannot be used, with a remedy, or "" if it can."""
    loaded = _load_or_explain()
    return loaded if isinstance(loaded, str) else ""


def load() -> Library:
    """Return the library; NoDevice if it cannot be used."""
    loaded = _load_or_explain()
    if isinstance(loaded, str):
        raise NoDevice(f"the CPU engine is missing: {loaded}")
    return loaded


class ThreadPool:
    """Thread pool of the CPU engine, shared by a pair's target and drafter. Close it after their last pass."""

    def __init__(self, threads: int, cpus: Sequence[int] = (), instruction_set: str = "") -> None:
        self.library = load()
        self.kernels = self.library.kernels(instruction_set)
        self.threads = threads
        self._pool: int | None = self.library.new_pool(threads, list(cpus))
        self._models: list[object] = []
        # ctypes creates a function object at each access, which takes microseconds.
        self.forward, self._inject = self.kernels.forward, self.kernels.inject

    @property
    def instruction_set(self) -> str:
        """Instruction set in use."""
        return str(self.kernels.name.decode())

    def keep_alive(self, *parts: object) -> None:
        """Keep a model's structs alive as long as this pool, whose threads may still be finishing a pass."""
        self._models += parts

    def inject(self, model: ModelStruct, taps: NDArray[np.float32], start: int) -> None:
        """Write the target's features [rows, n_taps * H] to a drafter's KV cache from position `start` on."""
        self._inject(ctypes.byref(model), address(taps), len(taps), start, self.handle)

    @property
    def handle(self) -> int:
        """Handle of the C++ thread pool; LocaldflashError after `close`."""
        if self._pool is None:
            raise LocaldflashError("the CPU engine was closed; load the pair again")
        return self._pool

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self.library.delete_pool(self._pool)
            self._pool = None
