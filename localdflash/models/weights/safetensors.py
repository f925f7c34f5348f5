"""Reads safetensors files: checks the header in Python, then loads tensors with the safetensors library.

The tensors' ranges must cover the data exactly once; any fault is a ModelError. A model in several files (`split`) is
read as one, by the path of its first part. Hugging Face's index is not read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeGuard

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.weights import split

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER_BYTES = 16 << 20  # a thousand tensors take 0.1 MiB
MAX_DIMS = 8
MAX_NAME = 255  # characters of a tensor's name
MAX_INT64 = 2**63 - 1
MAX_QUOTED = 40  # bytes or characters of the file in a message
LENGTH_BYTES = 8  # at the start of a file: the length of its header

DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True)
class SafetensorInfo:
    """Location of a tensor: dtype as in the file ("BF16"), offset from the file's start, index of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True)
class SafetensorsHeader:
    """Checked header; `metadata` is the file's `__metadata__`."""

    path: Path
    metadata: Mapping[str, str]
    tensors: dict[str, SafetensorInfo]

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that contain the tensors: `path`, or all parts of a model of which `path` is the first."""
        return split.files_of(self.path)


def read_header(path: Path) -> SafetensorsHeader:
    """Read the checked header of a safetensors file, or of all parts; ModelError if one is invalid."""
    split.check_parts(path)
    headers = [_read_part(file) for file in split.files_of(path)]
    tensors: dict[str, SafetensorInfo] = {}
    for index, header in enumerate(headers):
        if duplicate := next((name for name in header.tensors if name in tensors), None):
            raise ModelError(f"{header.path}: tensor {duplicate} is in an earlier part, too; download the parts again")
        tensors |= {name: replace(info, part=index) for name, info in header.tensors.items()}
    return replace(headers[0], tensors=tensors)


def _read_part(path: Path) -> SafetensorsHeader:
    """Check and read the header of one file."""
    with open_model(path) as (stream, size):
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
            raise _broken(path, f"its header needs {length} bytes, the file has {size}")
        if length > MAX_HEADER_BYTES:
            raise _broken(path, f"its header has {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
        text = stream.read(length)
    entries = _parse(path, text)
    metadata = _metadata(path, entries.pop("__metadata__", {}))
    data_offset = LENGTH_BYTES + length
    tensors = {name: _tensor_info(path, name, entry, data_offset) for name, entry in entries.items()}
    _check_coverage(path, tensors, data_offset, size)
    return SafetensorsHeader(path, MappingProxyType(metadata), tensors)


def load(path: Path) -> "dict[str, Tensor]":
    """Load all tensors to the CPU, by name, after checking the headers."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in read_header(path).files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise _broken(file, str(error)) from error
    return tensors


def _broken(path: Path, problem: str) -> ModelError:
    return ModelError(f"{path}: broken safetensors file: {problem}; download or convert it again")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("duplicate name")
    return entries


def _no_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _parse(path: Path, text: bytes) -> dict[str, object]:
    if not text.startswith(b"{"):
        raise _broken(path, f"its header is not a JSON object: {text[:MAX_QUOTED]!r}")
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header cannot be read: {error}") from error
    return dict(entries)


def _metadata(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _broken(path, "__metadata__ is not a map of strings")
    return value


def _tensor_info(path: Path, name: str, entry: object, data_offset: int) -> SafetensorInfo:
    if not (name.isprintable() and 0 < len(name) <= MAX_NAME):
        raise _broken(path, f"{name[:MAX_QUOTED]!a} cannot be the name of a tensor")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, f"tensor {name} has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise _broken(path, f"tensor {name} has a dtype that is not a string")
    if dtype not in DTYPE_BYTES:
        raise _broken(path, f"tensor {name} has the unknown dtype {dtype[:MAX_QUOTED]!a}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        raise _broken(path, f"tensor {name} has a shape that is not a list of at most {MAX_DIMS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _broken(path, f"tensor {name} has data_offsets that are not two sizes")
    nbytes = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise _broken(path, f"tensor {name} needs {nbytes} bytes and has {offsets[1] - offsets[0]}")
    return SafetensorInfo(name, dtype, tuple(shape), data_offset + offsets[0], nbytes)


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= MAX_INT64 for value in values)


def _check_coverage(path: Path, tensors: Mapping[str, SafetensorInfo], data_offset: int, size: int) -> None:
    expected = data_offset
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != expected:
            raise _broken(path, f"tensor {info.name} starts at byte {info.offset} instead of {expected}")
        expected += info.nbytes
    if expected != size:
        raise _broken(path, f"its tensors end at byte {expected}, the file has {size}")
