"""KV cache of a stack of blocks, in float16 or int8; layout: `Cache` in kernels/cpu/formats.h."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import CacheStruct, address, allocate_aligned
from localdflash.backends.cpu.packing import GROUP
from localdflash.models.shapes.decoder_config import DecoderConfig

STRIP_KEYS = 16  # positions whose keys are interleaved
KV_FORMATS = ("f16", "int8")


@dataclass(frozen=True)
class CacheArray:
    """Array of one head: a row of shape `row` holds `positions_per_row` positions, on its second axis if several."""

    dtype: Any
    positions_per_row: int
    row: tuple[int, ...]

    def rows(self, length: int) -> int:
        """Return the number of rows for `length` positions."""
        return -(-length // self.positions_per_row)


def cache_arrays(head_dim: int, kv: str) -> Sequence[CacheArray]:
    """Return the arrays of K and V, for "int8" also their scales, in the order of `CacheStruct`."""
    if kv == "f16":
        return CacheArray(np.float16, STRIP_KEYS, (head_dim, STRIP_KEYS)), CacheArray(np.float16, 1, (head_dim,))
    return (
        CacheArray(np.int8, STRIP_KEYS, (head_dim // 2, STRIP_KEYS, 2)),
        CacheArray(np.int8, 2, (head_dim, 2)),
        CacheArray(np.float32, STRIP_KEYS, (head_dim // GROUP, STRIP_KEYS)),
        CacheArray(np.float32, 1, ()),
    )


def choose_kv_format(kv: str) -> str:
    """Return the requested format of the KV cache, or "f16" if the CPU engine lacks it."""
    return kv if kv in KV_FORMATS else "f16"


def pad_positions(positions: int) -> int:
    """Round a number of positions up to whole strips."""
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

    def bind(self, block: int) -> CacheStruct:
        """Return the struct of a block's cache; the caller keeps this object alive."""
        return CacheStruct(*(address(array[block]) for array in self.arrays))

    def clear(self, start: int, stop: int) -> None:
        """Set the positions from `start` to `stop` to zero."""
        at = np.arange(start, stop)
        for array, form in zip(self.arrays, self._forms, strict=True):
            if form.positions_per_row == 1:
                array[:, :, at] = 0
            else:
                array[:, :, at // form.positions_per_row, :, at % form.positions_per_row] = 0

    def save(self, length: int) -> bytes:
        """Return the first `length` positions, for `load`."""
        return b"".join(array.tobytes() for array in self._first(length))

    def load(self, state: bytes, length: int) -> None:
        """Restore saved positions; ValueError if the size does not match."""
        at = 0
        for array in self._first(length):
            array[...] = np.frombuffer(state, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes
        if at != len(state):
            raise ValueError(f"{len(state)} bytes of KV cache (expected {at})")

    def _first(self, length: int) -> list[NDArray[Any]]:
        return [array[:, :, : form.rows(length)] for array, form in zip(self.arrays, self._forms, strict=True)]
