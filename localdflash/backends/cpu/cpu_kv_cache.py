"""KV cache of a stack of layers, in float16 or codes; layout: `Cache` in kernels/cpu/formats.h."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_library import CacheStruct, address, allocate_aligned
from localdflash.backends.cpu.packing import GROUP
from localdflash.models.shapes.decoder_config import DecoderConfig

STRIP_KEYS = 16  # positions of a strip, whose keys are interleaved
VALUE_BITS = {"f16": 16, "int8": 8, "k8v4": 4}  # by KV format; keys have 16 bits, 8 and 8
CPU_KV_FORMATS = tuple(VALUE_BITS)


@dataclass(frozen=True)
class ArrayLayout:
    """Layout of one head's array: rows of shape `row`, whose second axis is the position if a row holds several."""

    dtype: Any
    positions_per_row: int
    row: tuple[int, ...]

    def rows(self, length: int) -> int:
        """Return the number of rows for `length` positions."""
        return -(-length // self.positions_per_row)


def cache_layouts(head_dim: int, kv: str) -> Sequence[ArrayLayout]:
    """Return the layouts of K and V, for codes also of their scales, in the order of `CacheStruct`."""
    if kv == "f16":
        return ArrayLayout(np.float16, STRIP_KEYS, (head_dim, STRIP_KEYS)), ArrayLayout(np.float16, 1, (head_dim,))
    return (
        ArrayLayout(np.int8, STRIP_KEYS, (head_dim // 2, STRIP_KEYS, 2)),  # keys
        ArrayLayout(np.uint8, 2, (head_dim // 2, 2)) if kv == "k8v4" else ArrayLayout(np.int8, 2, (head_dim, 2)),
        ArrayLayout(np.float32, STRIP_KEYS, (head_dim // GROUP, STRIP_KEYS)),  # scales of the groups of keys
        ArrayLayout(np.float32, 1, ()),  # scales of values
    )


def choose_kv_format(kv: str, pair_kv: str | None) -> str:
    """Return `kv`, or the pair's KV format if `kv` is "auto"; "f16" if the CPU engine lacks that format."""
    kv_format = pair_kv if kv == "auto" else kv
    return kv_format if kv_format in CPU_KV_FORMATS else "f16"


def pad_positions(positions: int) -> int:
    """Round a number of positions up to whole strips."""
    return -(-positions // STRIP_KEYS) * STRIP_KEYS


def cache_bytes(config: DecoderConfig, positions: int, kv: str = "f16") -> int:
    """Return the size in bytes of one layer's KV cache."""
    layouts = cache_layouts(config.head_dim, kv)
    sizes = [each.rows(pad_positions(positions)) * prod(each.row) * np.dtype(each.dtype).itemsize for each in layouts]
    return config.num_key_value_heads * int(sum(sizes))


class KVCache:
    """KV cache of a stack of layers; `arrays` [layers, heads, rows, ...] are in the order of `CacheStruct`."""

    def __init__(self, layers: int, config: DecoderConfig, capacity: int, kv: str = "f16") -> None:
        self.capacity = pad_positions(capacity)
        self._layouts, self._value_bits = cache_layouts(config.head_dim, kv), VALUE_BITS[kv]
        self.arrays: list[NDArray[Any]] = [
            allocate_aligned((layers, config.num_key_value_heads, each.rows(self.capacity), *each.row), each.dtype)
            for each in self._layouts
        ]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def bind(self, layer: int) -> CacheStruct:
        """Return the struct of a layer's cache; it points into this KVCache, which must outlive it."""
        addresses = [address(array[layer]) for array in self.arrays]
        return CacheStruct(*addresses, *[None] * (4 - len(addresses)), self._value_bits)

    def clear(self, start: int, stop: int) -> None:
        """Set positions `start` up to, but not including, `stop` to zero."""
        positions = np.arange(start, stop)
        for array, layout in zip(self.arrays, self._layouts, strict=True):
            if layout.positions_per_row == 1:
                array[:, :, positions] = 0
            else:
                array[:, :, positions // layout.positions_per_row, :, positions % layout.positions_per_row] = 0

    def save(self, length: int) -> bytes:
        """Return the rows that hold the first `length` positions, for `load`."""
        return b"".join(array.tobytes() for array in self._first_rows(length))

    def load(self, state: bytes, length: int) -> None:
        """Restore the first `length` positions from `save`; ValueError if the size does not match."""
        offset = 0
        for array in self._first_rows(length):
            array[...] = np.frombuffer(state, array.dtype, array.size, offset).reshape(array.shape)
            offset += array.nbytes
        if offset != len(state):
            raise ValueError(f"{len(state)} bytes of KV cache (expected {offset})")

    def _first_rows(self, length: int) -> list[NDArray[Any]]:
        return [array[:, :, : layout.rows(length)] for array, layout in zip(self.arrays, self._layouts, strict=True)]
