"""Packed files: a model's packed weights, written once to the cache folder and mapped into memory from then on.

A packed file is an image and a seal. The image is a prefix (magic, version, length and digest of the header), the
header as JSON, and each entry's arrays, aligned to 64 bytes. Array offsets are computed from the header, so no array
can lie outside the image. The seal holds the image's SHA-256, which is verified if the seal's inode or modification
time differ from the file's. If a packed file is damaged, or older than its source (the model file), the source is
packed again. If the file cannot be written, the packed weights stay in memory.
"""

import errno
import hashlib
import mmap
import os
import secrets
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Generic

import msgspec
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.model_source import CheckedFile, Config, iterate_chunks, read_floats, read_rows
from localdflash.backends.cpu.packing import PANEL, ArraySpec, Kind, MatrixShape, PackedMatrix, pack_rows
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.files import paths
from localdflash.base.files.regular import open_model
from localdflash.base.system.descriptor import write_at
from localdflash.base.system.process import is_running
from localdflash.models.memory.free import system_budget
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights import split

MAGIC, VERSION = b"LDFPACK\n", 2
PREFIX = struct.Struct("<8sIQ16s")  # magic, version, length and digest of the header
SEAL = struct.Struct("<QQ32s")  # inode, modification time in nanoseconds, SHA-256
ALIGNMENT, SUFFIX = 64, ".packed"
NANOSECONDS = 1_000_000_000  # per second
CHUNK_BYTES = 1 << 20
SPARE_BYTES = 1 << 28  # disk space that packing leaves free

Layer = dict[str, Any]  # packed matrices and float32 arrays by name
Progress = Callable[[int, int], None]  # bytes done, total bytes
Write = Callable[[int, Any], None]  # called with an offset in the image and the data to write there


class PackedFileWriteError(Exception):
    """Failure to write a packed file."""


class SourceStamp(msgspec.Struct, frozen=True):
    """Identity of the model file that an image was packed from, or of its first part."""

    path: bytes  # absolute, links resolved
    size: int
    mtime_ns: int
    header_bytes: int  # bytes before the tensor data
    digest: str  # covers the header; other parts' names, sizes, times and headers; a drafter's config.json


@dataclass(frozen=True)
class ImageEntry:
    """Entry of an image: a packed matrix, or a float32 array."""

    name: str
    matrix: MatrixShape | None
    shape: tuple[int, ...] = ()  # shape of the float32 array

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """Arrays that the entry is stored in."""
        return self.matrix.arrays if self.matrix else (ArraySpec(np.float32, self.shape),)


class ImageHeader(msgspec.Struct, frozen=True):
    """Header of an image."""

    stamp: SourceStamp
    config: msgspec.Raw  # the model's configuration in JSON
    entries: tuple[ImageEntry, ...]

    def encoded(self) -> bytes:
        """Return the first bytes of an image: the prefix, then the header in JSON."""
        text = msgspec.json.encode(self)
        return PREFIX.pack(MAGIC, VERSION, len(text), _header_digest(text)) + text


def place_arrays(header: ImageHeader) -> tuple[dict[str, list[tuple[ArraySpec, int]]], int]:
    """Return the arrays of every entry with their offsets in the image, and the image's size in bytes."""
    arrays_by_entry: dict[str, list[tuple[ArraySpec, int]]] = {}
    size = len(header.encoded())
    for entry in header.entries:
        for array in entry.arrays:
            offset = -(-size // ALIGNMENT) * ALIGNMENT
            arrays_by_entry.setdefault(entry.name, []).append((array, offset))
            size = offset + array.nbytes
    return arrays_by_entry, size


@dataclass(frozen=True)
class PackedModel(Generic[Config]):
    """Packed weights of a model."""

    config: Config
    parts: Mapping[str, Any]  # by name ("embedding", "layers.0.query"): PackedMatrix, or a float32 array
    notice: str = ""  # for the user; "": none

    def layers(self) -> list[Layer]:
        """Return the parts of each layer by their names in `LayerStruct`."""
        layers: dict[int, Layer] = {}
        for name, part in self.parts.items():
            if name.startswith("layers."):
                _, number, own = name.split(".")
                layers.setdefault(int(number), {})[own] = part
        return [layers[number] for number in sorted(layers)]

    @property
    def head(self) -> Any:
        """Head matrix; the embedding if they are tied."""
        return self.parts.get("head", self.parts.get("embedding"))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in self.parts.values())


def open_packed(
    path: Path,
    config_type: type[Config],
    read_source: Callable[[Path], CheckedFile[Config]],
    progress: Progress | None = None,
    bits: int = 8,
) -> PackedModel[Config]:
    """Return the packed weights of a model file, packing them if no packed file of these `bits` is valid."""
    path = Path(os.path.abspath(path))
    with open_model(path):
        name = hashlib.blake2b(_real_path(path), digest_size=16).hexdigest()
    file = _folder() / f"{name}{'-4' if bits == 4 else ''}{SUFFIX}"
    if packed := _map_packed(file, path, config_type):
        return packed
    source = read_source(path)
    entries = tuple(ImageEntry(p.name, p.matrix, () if p.matrix else p.tensor.shape) for p in source.parts)
    config = msgspec.Raw(msgspec.json.encode(source.config))
    header = ImageHeader(_read_stamp(path, config_type, source.data_offset), config, entries)
    try:
        _write_packed(file, source, header, progress)
        if packed := _map_packed(file, path, config_type):
            return packed
        reason = "replaced by another process"
    except ModelError:
        raise
    except (PackedFileWriteError, LocaldflashError, OSError) as error:
        reason = str(getattr(error, "strerror", error))
    notice = f"{file.parent}: cannot store the packed weights of {path.name} ({reason}); every start packs them again"
    return PackedModel(source.config, _view_parts(header, _pack_in_memory(source, header, progress)), notice)


def _real_path(path: Path) -> bytes:
    return os.fsencode(os.path.realpath(path))


def _read_stamp(path: Path, config_type: type[Config], header_bytes: int) -> SourceStamp:
    digest = hashlib.blake2b(digest_size=16)
    with open_model(path) as (stream, size):
        status = os.fstat(stream.fileno())
        digest.update(stream.read(header_bytes))
    for part in split.files_of(path)[1:]:
        with open_model(part) as (stream, part_bytes):
            mtime_ns = os.fstat(stream.fileno()).st_mtime_ns
            digest.update(f"\n{part.name} {part_bytes} {mtime_ns}\n".encode() + stream.read(header_bytes))
    if config_type is DFlashConfig and path.suffix != ".gguf":
        with open_model(path.with_name("config.json")) as (stream, _):
            digest.update(stream.read())
    return SourceStamp(_real_path(path), size, status.st_mtime_ns, header_bytes, digest.hexdigest())


# Packing a source into an image.


def pack(source: CheckedFile[Config], header: ImageHeader, write: Write, progress: Progress | None = None) -> None:
    """Pack a source and write its image; ModelError if a tensor cannot be packed or the source changes meanwhile."""
    arrays_by_entry, bytes_done = place_arrays(header)[0], 0
    total = sum(array.nbytes for entry in arrays_by_entry.values() for array, _ in entry)
    write(0, header.encoded())
    with ExitStack() as stack:
        files = [stack.enter_context(open_model(file))[0].fileno() for file in split.files_of(source.path)]
        for chunk in iterate_chunks(source):
            part, info = chunk.part, chunk.part.tensor
            try:
                if part.matrix is None:
                    arrays: tuple[NDArray[Any], ...] = (read_floats(files[info.part], part),)
                else:
                    raw, to_q4_0 = read_rows(files[info.part], chunk), part.matrix.kind == Kind.Q4_0
                    arrays = pack_rows(raw, info.ggml_type, to_q4_0)
            except ModelError as error:
                problem = f"{source.path}: tensor {info.name}: {error}; download or convert the model again"
                raise ModelError(problem) from None
            for (array, offset), packed in zip(arrays_by_entry[part.name], arrays, strict=True):
                panel = chunk.expert * array.shape[1] + chunk.first // PANEL if part.matrix else 0
                write(offset + panel * ArraySpec(array.dtype, array.shape[2:]).nbytes, packed.data)
                bytes_done += packed.nbytes
            if progress:
                progress(bytes_done, total)
    if _read_stamp(source.path, type(source.config), source.data_offset) != header.stamp:
        raise ModelError(f"{source.path}: changed while it was read; try again")


def _pack_in_memory(source: CheckedFile[Config], header: ImageHeader, progress: Progress | None) -> mmap.mmap:
    """Return the image of a source in memory; raise OutOfMemory if it does not fit."""
    size, free = place_arrays(header)[1], system_budget().free
    buffer = None
    if size <= free:
        with suppress(OSError):
            buffer = mmap.mmap(-1, size)
    if buffer is None:
        raise OutOfMemory(
            f"{source.path}: packed weights of {size >> 20} MiB exceed the free memory ({free >> 20} MiB);"
            f" free disk space in {paths.cache_folder()}, or use a smaller model"
        )

    def write(offset: int, data: bytes | memoryview) -> None:
        raw = memoryview(data).cast("B")
        buffer[offset : offset + len(raw)] = raw

    pack(source, header, write, progress)
    return buffer


def _write_packed(file: Path, source: CheckedFile[Config], header: ImageHeader, progress: Progress | None) -> None:
    """Pack a source into a file; raise PackedFileWriteError, OSError or LocaldflashError on failure."""
    needed = place_arrays(header)[1] + SEAL.size + SPARE_BYTES
    paths.create_private(file.parent)
    clean()
    if shutil.disk_usage(file.parent).free < needed:
        remove(file)  # it was packed from an older source
    if (free := shutil.disk_usage(file.parent).free) < needed:
        raise OSError(errno.ENOSPC, f"needs {-(-needed >> 20)} MiB, {free >> 20} MiB are free")
    temporary_path = file.with_name(f"{file.stem}.{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        pack(source, header, partial(_write_all, descriptor), progress)
        with open(descriptor, "r+b", buffering=0, closefd=False) as stream:
            size = os.fstat(descriptor).st_size
            _write_seal(stream, size, _digest(stream, size))
        os.fsync(descriptor)  # before the file gets its name
        temporary_path.replace(file)
    finally:
        os.close(descriptor)
        remove(temporary_path)


def _write_all(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    remaining = memoryview(data).cast("B")
    try:
        while remaining:
            count = write_at(descriptor, remaining, offset)
            remaining, offset = remaining[count:], offset + count
    except OSError as error:  # `open_model` would report an OSError as a failure to read
        raise PackedFileWriteError(error.strerror) from None


def _digest(stream: BinaryIO, size: int) -> bytes:
    digest = hashlib.sha256()
    stream.seek(0)
    while size and (data := stream.read(min(size, CHUNK_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest.digest()


def _write_seal(stream: BinaryIO, size: int, digest: bytes) -> None:
    status = os.fstat(stream.fileno())
    mtime_ns = status.st_mtime_ns // NANOSECONDS * NANOSECONDS  # every file system stores whole seconds
    stream.seek(size)
    stream.write(SEAL.pack(status.st_ino, mtime_ns, digest))
    os.utime(stream.fileno(), ns=(status.st_atime_ns, mtime_ns))


# Mapping a packed file.


def _map_packed(file: Path, path: Path, config_type: type[Config]) -> PackedModel[Config] | None:
    """Return the weights in a packed file and guard its mapping; None if it is missing, damaged or out of date."""
    if (buffer := _map_file(file)) is None or (header := read_header(buffer)) is None:
        return None
    if (
        place_arrays(header)[1] + SEAL.size != len(buffer)
        or header.stamp != _read_stamp(path, config_type, header.stamp.header_bytes)
        or not is_intact(file)
    ):
        return None
    if not cpu_library.why_unavailable():
        cpu_library.load().guard(file, buffer)
    try:
        return PackedModel(msgspec.json.decode(header.config, type=config_type), _view_parts(header, buffer))
    except msgspec.ValidationError:  # a target instead of a drafter, or the reverse
        return None


def _map_file(path: Path) -> mmap.mmap | None:
    """Map a file read-only, in huge pages if the system can; None if it cannot be read or is empty."""
    try:
        with path.open("rb") as stream:
            buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if sys.platform == "linux":
        with suppress(OSError):  # a kernel without huge pages
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def read_header(start: bytes | mmap.mmap) -> ImageHeader | None:
    """Read the header of an image that begins with `start`; None if the image is damaged or of another version."""
    if len(start) < PREFIX.size:
        return None
    magic, version, length, digest = PREFIX.unpack_from(start)
    text = start[PREFIX.size : PREFIX.size + length] if magic == MAGIC and version == VERSION else b""
    if _header_digest(text) != digest:
        return None
    try:
        return msgspec.json.decode(text, type=ImageHeader)
    except msgspec.MsgspecError:
        return None


def _header_digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def is_intact(path: Path) -> bool:
    """Return whether a file matches its seal; if inode or time differ, hash the whole file and renew the seal."""
    try:
        with path.open("rb", buffering=0) as stream:
            status = os.fstat(stream.fileno())
            size = status.st_size - SEAL.size
            stream.seek(size)
            inode, mtime_ns, digest = SEAL.unpack(stream.read(SEAL.size))
            if (inode, mtime_ns) == (status.st_ino, status.st_mtime_ns):
                return True
            if _digest(stream, size) != digest:
                return False
    except OSError:
        return False
    with suppress(OSError), path.open("r+b", buffering=0) as stream:
        _write_seal(stream, size, digest)
    return True


def _view_parts(header: ImageHeader, buffer: mmap.mmap) -> dict[str, Any]:
    """Return the entries of an image by name, as views that keep the buffer alive; the size is already checked."""
    arrays_by_entry, parts = place_arrays(header)[0], dict[str, Any]()
    for entry in header.entries:
        m, views = entry.matrix, [_view(buffer, *array_offset) for array_offset in arrays_by_entry[entry.name]]
        parts[entry.name] = PackedMatrix(m.kind, m.n, m.k, m.experts, *views) if m else views[0]
    return parts


def _view(buffer: mmap.mmap, array: ArraySpec, offset: int) -> NDArray[Any]:
    view = np.frombuffer(buffer, array.dtype, prod(array.shape), offset).reshape(array.shape)
    view.flags.writeable = False
    return view


def _folder() -> Path:
    return paths.cache_folder() / "cpu"


def clean() -> None:
    """Remove unfinished files of ended processes, and packed files whose source is missing."""
    for path in _folder().iterdir() if _folder().is_dir() else ():
        process = path.suffix.removeprefix(".").partition("-")[0]
        is_abandoned = process.isdecimal() and not is_running(int(process))
        buffer = _map_file(path) if path.suffix == SUFFIX else None
        header = read_header(buffer) if buffer else None
        if is_abandoned or (path.suffix == SUFFIX and not (header and os.path.exists(header.stamp.path))):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file if possible."""
    with suppress(OSError):  # the file was removed by another process, or renamed
        path.unlink()
