"""The format of a packed model in memory and on disk: a header, and arrays whose places follow from it.

A prefix (magic, version, length and digest of what follows), the header as JSON, then for each entry its arrays, each
on a multiple of 64 bytes. Nothing in the file says where an array is, so nothing can point outside it: the header's
digest and the exact size are what protects a process. On disk a seal follows, which says whether the weights are those
that were written (see files).
"""

import hashlib
import mmap
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.matrices import Array, MatrixShape, PackedMatrix

MAGIC, VERSION = b"LDFPACK\n", 2
PREFIX = struct.Struct("<8sIQ16s")
ALIGNMENT = 64


class Stamp(msgspec.Struct, frozen=True):
    """Identifies the file that an image was packed from."""

    path: bytes  # absolute, links followed
    size: int
    mtime_ns: int
    header_bytes: int  # before its tensor data
    digest: str  # of these, and of the configuration beside it


@dataclass(frozen=True)
class ImageEntry:
    """A matrix, or float32 numbers of a shape."""

    name: str
    matrix: MatrixShape | None
    shape: tuple[int, ...] = ()

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the entry."""
        return self.matrix.arrays if self.matrix else (Array(np.float32, self.shape),)


class Header(msgspec.Struct, frozen=True):
    """`config` is the model's, in JSON."""

    stamp: Stamp
    config: msgspec.Raw
    entries: tuple[ImageEntry, ...]

    def encoded(self) -> bytes:
        """The first bytes of an image."""
        text = msgspec.json.encode(self)
        return PREFIX.pack(MAGIC, VERSION, len(text), _digest(text)) + text


class PlacedArray(NamedTuple):
    """An array of an entry, and where it starts."""

    array: Array
    offset: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(np.dtype(self.array.dtype).itemsize * np.prod(self.array.shape, dtype=np.int64))


class ImageLayout:
    """Where every array is in an image with this header, the image's size, and that of the arrays alone."""

    def __init__(self, header: Header) -> None:
        self.places: dict[str, tuple[PlacedArray, ...]] = {}
        self.weights = 0
        self.size = len(header.encoded())
        for entry in header.entries:
            self.places[entry.name] = tuple(self._place(array) for array in entry.arrays)

    def _place(self, array: Array) -> PlacedArray:
        place = PlacedArray(array, -(-self.size // ALIGNMENT) * ALIGNMENT)
        self.size = place.offset + place.nbytes
        self.weights += place.nbytes
        return place


def read_header(start: bytes | mmap.mmap) -> Header | None:
    """The header of an image; None if this is not one, or one of another version."""
    if len(start) < PREFIX.size:
        return None
    magic, version, length, digest = PREFIX.unpack_from(start)
    text = start[PREFIX.size : PREFIX.size + length] if magic == MAGIC and version == VERSION else b""
    if _digest(text) != digest:
        return None
    try:
        return msgspec.json.decode(text, type=Header)
    except msgspec.MsgspecError:
        return None


def as_json(config: object) -> msgspec.Raw:
    """A configuration, for `Header.config`."""
    return msgspec.Raw(msgspec.json.encode(config))


def mapped(path: Path) -> mmap.mmap | None:
    """A file's bytes, read-only; None if it does not exist or is empty.

    Where the system can, they are read in huge pages: weights in small ones keep a core waiting for addresses.
    """
    try:
        with path.open("rb") as stream:
            buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if sys.platform == "linux":
        with suppress(OSError):  # one without them
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def parts_of(header: Header, buffer: mmap.mmap) -> dict[str, PackedMatrix | NDArray[np.float32]]:
    """The entries of an image by name, as views that keep the buffer alive; its size has been checked."""
    places = ImageLayout(header).places
    return {entry.name: _part(entry, buffer, iter(places[entry.name])) for entry in header.entries}


def _part(entry: ImageEntry, buffer: mmap.mmap, places: Iterator[PlacedArray]) -> PackedMatrix | NDArray[np.float32]:
    views = [_view(buffer, place) for place in places]
    m = entry.matrix
    return PackedMatrix(m.kind, m.n, m.k, m.experts, *views) if m else views[0]


def _view(buffer: mmap.mmap, place: PlacedArray) -> NDArray[Any]:
    shape = place.array.shape
    view = np.frombuffer(buffer, place.array.dtype, int(np.prod(shape, dtype=np.int64)), place.offset).reshape(shape)
    view.flags.writeable = False
    return view


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
