"""Reads GGUF files: checks the header completely in Python before a C parser sees the file; loads tensors into torch.

A checked header is safe for llama.cpp; any fault is a ModelError. A model in several files (`split`) is read as one, by
the path of its first part. Format: ggml's GGUF specification, and the stricter rules of llama.cpp's reader.
"""

import io
import mmap
import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.weights import split
from localdflash.models.weights.ggml_types import BY_CODE, GGMLType
from localdflash.models.weights.gguf_limits import check_limits
from localdflash.models.weights.gguf_reader import MAX_HEADER_BYTES, GGUFReader, read_metadata

if TYPE_CHECKING:
    import torch

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Far above real models, which have up to a few thousand tensors and a hundred keys.
MAX_TENSORS = 100_000
MAX_KEYS = 10_000
MAX_NAME_BYTES = 63  # ggml stores names in 64 bytes with a final NUL
MAX_DIMS = 4
MAX_INT64 = 2**63 - 1

MIN_KEY_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

T = TypeVar("T")
Identity = tuple[int, ...]  # identifies the state of a model's files; see `_identity`


@dataclass(frozen=True)
class TensorInfo:
    """Location of a tensor: shape with rows first (ggml's reversed), offset from file start, index of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True)
class GGUFHeader:
    """Checked header. Arrays in `metadata` are lists; tensor data of `path` starts at `data_offset`."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: dict[str, TensorInfo]
    data_offset: int

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that contain the tensors: `path`, or all parts of a model of which `path` is the first."""
        return split.files_of(self.path)

    @property
    def architecture(self) -> str:
        """Return `general.architecture`, for example "qwen3"."""
        return self.require("general.architecture", str)

    def require(self, key: str, kind: type[T]) -> T:
        """Return the metadata value of `key`; ModelError if it is missing or not of the given Python type."""
        if key not in self.metadata:
            raise ModelError(f"{self.path}: metadata key {key} is missing; convert the model again")
        value = self.metadata[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            actual, expected = type(value).__name__, kind.__name__
            raise ModelError(f"{self.path}: metadata key {key} is {actual}, not {expected}; convert the model again")
        return value


_CACHED_HEADERS: ContextVar[dict[Identity, GGUFHeader] | None] = ContextVar("_CACHED_HEADERS", default=None)


@contextmanager
def cached_headers() -> Iterator[None]:
    """Return a context that caches headers of unchanged files: reading a large vocabulary takes 0.1 s."""
    token = _CACHED_HEADERS.set({})
    try:
        yield
    finally:
        _CACHED_HEADERS.reset(token)


def read_header(path: Path) -> GGUFHeader:
    """Read the checked header of a GGUF file, or of all parts of a model; ModelError if one is invalid."""
    cache, identity = _CACHED_HEADERS.get(), _identity(path)
    if cache and identity in cache:
        return replace(cache[identity], path=path)
    header = _read_all_parts(path)
    if cache is not None and identity == _identity(path):  # the file did not change meanwhile
        cache[identity] = header
    return header


def is_gguf(path: Path) -> bool:
    """Return whether a regular file has GGUF's magic bytes."""
    try:
        with open_model(path) as (stream, _):
            return stream.read(len(MAGIC)) == MAGIC
    except ModelError:
        return False


def _identity(path: Path) -> Identity:
    """Return device, inode, size and times of a model's files."""
    split.check_parts(path)
    identity: Identity = ()
    for file in split.files_of(path):
        with open_model(file) as (stream, _):
            status = os.fstat(stream.fileno())
        identity += (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return identity


def _read_all_parts(path: Path) -> GGUFHeader:
    """Return the header of a file, or of all parts of a model as one."""
    files = split.files_of(path)
    first, tensors, header_bytes = None, dict[str, TensorInfo](), 0
    for index, file in enumerate(files):
        with open_model(file) as (stream, size):
            header = parse_header(stream, size, file)
        split.check_part(file, header.metadata, index, len(files))
        if duplicate := next((name for name in header.tensors if name in tensors), None):
            raise ModelError(f"{file}: tensor {duplicate} is in an earlier part, too; download the parts again")
        tensors |= {name: replace(info, part=index) for name, info in header.tensors.items()}
        header_bytes += header.data_offset
        if header_bytes > MAX_HEADER_BYTES and index:
            raise ModelError(f"{file}: the headers of its parts are larger than {MAX_HEADER_BYTES >> 20} MiB together")
        first = first or header
    assert first
    expected = first.metadata.get(split.TENSORS, len(tensors))
    if len(files) > 1 and expected != len(tensors):
        raise ModelError(f"{path}: its parts hold {len(tensors)} tensors instead of {expected}; download them again")
    return replace(first, tensors=tensors)


def parse_header(stream: io.BufferedReader, size: int, path: Path) -> GGUFHeader:
    """Read a checked header from a stream of `size` bytes; errors name `path`."""
    reader = GGUFReader(stream, size, path)
    version = _read_version(reader)
    n_tensors = _read_count(reader, "tensors", MAX_TENSORS, MIN_TENSOR_BYTES)
    n_keys = _read_count(reader, "metadata keys", MAX_KEYS, MIN_KEY_BYTES)
    metadata = read_metadata(reader, n_keys)
    check_limits(reader, metadata)
    alignment = _alignment(reader, metadata)
    infos = _read_tensor_infos(reader, n_tensors)
    data_offset = padded(reader.position, alignment)
    tensors = _with_file_offsets(reader, infos, data_offset, alignment, size)
    return GGUFHeader(path, version, MappingProxyType(metadata), tensors, data_offset)


def load_blocks(header: GGUFHeader, name: str) -> "torch.Tensor":
    """Map the raw bytes of a tensor, uint8 [nbytes]; writes do not change the file."""
    import torch

    info = find(header, name)
    first = info.offset - info.offset % mmap.ALLOCATIONGRANULARITY
    end = info.offset + info.nbytes
    with open_model(header.files[info.part]) as (stream, size):
        if size < end:
            raise ModelError(f"{header.files[info.part]}: became shorter than tensor {name} needs; download it again")
        mapping = mmap.mmap(stream.fileno(), end - first, access=mmap.ACCESS_COPY, offset=first)
    return torch.frombuffer(mapping, dtype=torch.uint8, count=info.nbytes, offset=info.offset - first)


def load_tensor(header: GGUFHeader, name: str) -> "torch.Tensor":
    """Read and dequantize a tensor: `info.shape`, float32."""
    from localdflash.models.weights import quants

    info = find(header, name)
    return quants.dequantize(load_blocks(header, name), info.ggml_type, info.shape, f"{header.path}: tensor {name}")


def load_ids(header: GGUFHeader, name: str) -> "array[int]":
    """Read a list of token ids; ModelError for any other tensor."""
    return array("q", _read_vector(header, name, "I64", "a list of token ids"))


def load_floats(header: GGUFHeader, name: str) -> "array[float]":
    """Read a vector of float32 without torch; ModelError for any other tensor."""
    return array("f", _read_vector(header, name, "F32", "a vector of F32"))


def _read_vector(header: GGUFHeader, name: str, kind: str, description: str) -> bytes:
    info = find(header, name)
    if info.ggml_type.name != kind or len(info.shape) != 1:
        raise ModelError(f"{header.path}: tensor {name} is not {description}; convert the model again")
    with open_model(header.files[info.part]) as (stream, _):
        stream.seek(info.offset)
        return stream.read(info.nbytes)


def find(header: GGUFHeader, name: str) -> TensorInfo:
    """Return the location of a tensor; ModelError if it is missing."""
    if name not in header.tensors:
        raise ModelError(f"{header.path}: tensor {name} is missing; convert the model again")
    return header.tensors[name]


def _read_version(reader: GGUFReader) -> int:
    magic = reader.take(len(MAGIC), "the magic")
    if magic != MAGIC:
        raise ModelError(f"{reader.path}: not a GGUF file (it starts with {magic!r}); give the path of a .gguf file")
    version = reader.u32("the version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise ModelError(f"{reader.path}: big-endian GGUF file; download or convert a little-endian one")
    raise ModelError(f"{reader.path}: GGUF version {version} is not supported; convert the model to version 3")


def _read_count(reader: GGUFReader, what: str, max_count: int, min_bytes: int) -> int:
    count = reader.u64(f"the number of {what}")
    if count > max_count:
        raise reader.broken(f"{count} {what}, at most {max_count} are allowed")
    if count * min_bytes > reader.remaining():
        raise reader.broken(f"{count} {what} do not fit into the file")
    return count


def _alignment(reader: GGUFReader, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment.bit_count() != 1:
        raise reader.broken(f"general.alignment is {alignment}, not a power of two")
    return alignment


def padded(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple


def _read_tensor_infos(reader: GGUFReader, count: int) -> dict[str, TensorInfo]:
    """Read the tensor descriptions, with offsets relative to the start of the data."""
    infos: dict[str, TensorInfo] = {}
    for index in range(count):
        name = reader.name(f"the name of tensor {index}", MAX_NAME_BYTES)
        if name in infos:
            raise reader.broken(f"duplicate tensor {name}")
        infos[name] = _read_tensor_info(reader, name)
    return infos


def _read_tensor_info(reader: GGUFReader, name: str) -> TensorInfo:
    what = f"tensor {name}"
    n_dims = reader.u32(what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise reader.broken(f"{what} has {n_dims} dimensions, 1 to {MAX_DIMS} are allowed")
    ne = [reader.u64(what) for _ in range(n_dims)]
    if 0 in ne or prod(ne) > MAX_INT64:
        raise reader.broken(f"{what} has the impossible shape {ne}")
    code = reader.u32(what)
    kind = BY_CODE.get(code)
    if kind is None:
        raise reader.broken(f"{what} has the unknown type {code}")
    if ne[0] % kind.block_weights:
        raise reader.broken(
            f"{what} has rows of {ne[0]} weights, not whole blocks of {kind.block_weights} ({kind.name})"
        )
    nbytes = prod(ne) // kind.block_weights * kind.block_bytes
    return TensorInfo(name, tuple(reversed(ne)), kind, reader.u64(what), nbytes)


def _with_file_offsets(
    reader: GGUFReader, infos: Mapping[str, TensorInfo], data_offset: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    """Return the tensors with offsets in the file; each must start where its predecessor's padding ends."""
    tensors = {}
    expected = 0
    for info in infos.values():
        if info.offset != expected:
            raise reader.broken(f"tensor {info.name} is at offset {info.offset} of the data instead of {expected}")
        offset = data_offset + info.offset
        if offset + info.nbytes > size:
            raise reader.broken(f"tensor {info.name} ends at byte {offset + info.nbytes}, the file has {size}")
        tensors[info.name] = replace(info, offset=offset)
        expected = padded(info.offset + info.nbytes, alignment)
    return tensors
