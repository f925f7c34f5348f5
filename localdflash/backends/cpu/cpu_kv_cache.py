"""KV cache of a stack of blocks, in float16 or in 8 bits: see `Cache` in kernels/cpu/formats.h."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import CacheStruct, address, allocate_aligned
from localdflash.backends.cpu.packing import GROUP
from localdflash.models.shapes.decoder_config import DecoderConfig

STRIP_KEYS = 16  # keys that lie together
KV_FORMATS = ("f16", "int8")


@dataclass(frozen=True)
class CacheArray:
    """An array of a block's head: rows of so many positions `together`, the second axis of a row if more than one."""

    dtype: Any
    together: int
    row: tuple[int, ...]

    def rows(self, length: int) -> int:
        """Return how many rows so many positions take."""
        return -(-length // self.together)


def cache_arrays(head_dim: int, kv: str) -> Sequence[CacheArray]:
    """Keys and values, of "int8" also their scales, in the order of `CacheStruct`; `kv` is one of KV_FORMATS."""
    if kv == "f16":
        return CacheArray(np.float16, STRIP_KEYS, (head_dim, STRIP_KEYS)), CacheArray(np.float16, 1, (head_dim,))
    return (
        CacheArray(np.int8, STRIP_KEYS, (head_dim // 2, STRIP_KEYS, 2)),
        CacheArray(np.int8, 2, (head_dim, 2)),
        CacheArray(np.float32, STRIP_KEYS, (head_dim // GROUP, STRIP_KEYS)),
        CacheArray(np.float32, 1, ()),
    )


def choose_kv_format(kv: str) -> str:
    """Return the format of the KV cache for a requested one."""
    return kv if kv in KV_FORMATS else "f16"


def pad_positions(positions: int) -> int:
    """For how many positions a cache that holds so many has room."""
    return -(-positions // STRIP_KEYS) * STRIP_KEYS


def cache_bytes(config: DecoderConfig, positions: int, kv: str = "f16") -> int:
    """Return the bytes of a block's KV cache."""
    arrays = cache_arrays(config.head_dim, kv)
    sizes = [
        array.rows(pad_positions(positions)) * prod(array.row) * np.dtype(array.dtype).itemsize for array in arrays
    ]
    return config.num_key_value_heads * int(sum(sizes))


class KVCache:
    """KV cache of a stack of blocks; `arrays` [blocks, heads, rows, ...] are in the order of `CacheStruct`."""

    def __init__(self, blocks: int, config: DecoderConfig, capacity: int, kv: str = "f16") -> None:
        self.capacity = pad_positions(capacity)
        self._forms = cache_arrays(config.head_dim, kv)
        self.arrays: list[NDArray[Any]] = [
            allocate_aligned((blocks, config.num_key_value_heads, form.rows(self.capacity), *form.row), form.dtype)
            for form in self._forms
        ]

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return sum(array.nbytes for array in self.arrays)

    def bound(self, block: int) -> CacheStruct:
        """Return the struct of a block's cache; whoever keeps it must keep this object too."""
        return CacheStruct(*(address(array[block]) for array in self.arrays))

    def clear(self, start: int, stop: int) -> None:
        """Put zeros at the positions from `start` up to `stop`."""
        at = np.arange(start, stop)
        for array, form in zip(self.arrays, self._forms, strict=True):
            if form.together == 1:
                array[:, :, at] = 0
            else:
                array[:, :, at // form.together, :, at % form.together] = 0

    def save(self, length: int) -> bytes:
        """Return what is kept of the first `length` positions."""
        return b"".join(array.tobytes() for array in self._first(length))

    def load(self, state: bytes, length: int) -> None:
        """Restore what was saved; ValueError if it is not of this shape."""
        at = 0
        for array in self._first(length):
            array[...] = np.frombuffer(state, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes
        if at != len(state):
            raise ValueError(f"{len(state)} bytes of KV cache (expected {at})")

    def _first(self, length: int) -> list[NDArray[Any]]:
        return [array[:, :, : form.rows(length)] for array, form in zip(self.arrays, self._forms, strict=True)]
