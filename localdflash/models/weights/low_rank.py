"""Merges a base GGUF and a LoRA adapter into one GGUF with the same bytes on every machine.

An adapter is a safetensors file: `T.up` [out, rank] and `T.down` [rank, in] for a matrix T of the base, `E.rows` that
replace rows of the embedding E, and notes. Sums are float64 in a fixed order, because matrix products round differently
on different machines.
"""

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import DEFAULT_ALIGNMENT, GGUFHeader, TensorInfo, read_header
from localdflash.models.weights.gguf_reader import ARRAY, STRING, UINT32, GGUFReader, encode_text, read_metadata

FILE_TYPES = {"Q4_1": 3, "Q8_0": 7, "Q5_1": 9}  # llama_ftype
EMBEDDING, TOKENS = "token_embd.weight", "tokenizer.ggml.tokens"
NOTES = "localdflash"  # the key of the notes in the adapter's metadata


@dataclass(frozen=True)
class AdapterNotes:
    """Metadata of an adapter: its base, and the name and quantization of the merged file."""

    base_sha256: str
    name: str
    quantization: str  # type of the matrices that change, one of `FILE_TYPES`
    rows: tuple[int, ...]  # embedding rows that are replaced
    spellings: Mapping[int, str]  # new spellings of tokens, by id

    def as_metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        return {NOTES: json.dumps(asdict(self))}


Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class _MergedTensor(NamedTuple):
    """Tensor of the merged file. `sizes` are in ggml's order, the innermost first."""

    name: str
    sizes: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: Bytes


def sha256_of(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def merge(base: Path, adapter: Path, path: Path) -> None:
    """Write base plus adapter to `path`; ModelError if the adapter was made for another base."""
    notes, updates = read_adapter(adapter, base)
    header = read_header(base)
    data = np.memmap(base, np.uint8, "r")
    tensors = [_merge_tensor(tensor, data, notes, updates) for tensor in header.tensors.values()]
    if updates:
        raise ModelError(f"{adapter}: tensor {min(updates)} does not belong to {base}; download the adapter again")
    _write(path, header, notes, tensors)


def write_vocabulary(base: Path, notes: AdapterNotes, path: Path) -> None:
    """Write the merged file without weights, which a tokenizer can read."""
    _write(path, read_header(base), notes, [])


def _merge_tensor(tensor: TensorInfo, file: Bytes, notes: AdapterNotes, updates: dict[str, Floats]) -> _MergedTensor:
    """Return a merged tensor; remove the adapter's tensors from `updates`."""
    name, kind = tensor.name, gguf.GGMLQuantizationType(int(tensor.ggml_type))
    data = file[tensor.offset : tensor.offset + tensor.nbytes].reshape(*tensor.shape[:-1], -1)
    if f"{name}.rows" in updates:
        data = data.copy()
        data[list(notes.rows)] = gguf.quantize(updates.pop(f"{name}.rows"), kind).view(np.uint8)
    elif f"{name}.up" in updates:
        values = _sum(gguf.dequantize(data, kind), updates.pop(f"{name}.up"), updates.pop(f"{name}.down"))
        kind = gguf.GGMLQuantizationType[notes.quantization]
        data = gguf.quantize(values, kind).view(np.uint8)
    return _MergedTensor(name, tensor.shape[::-1], kind, data)


def _sum(base: Floats, up: Floats, down: Floats) -> Floats:
    """Return base + up @ down."""
    total = base.astype(np.float64)
    for column, row in zip(up.T.astype(np.float64), down.astype(np.float64), strict=True):
        total += column[:, None] * row
    return total.astype(np.float32)


def read_adapter(path: Path, base: Path) -> tuple[AdapterNotes, dict[str, Floats]]:
    """Return the notes and tensors of an adapter; ModelError if it is damaged, or made for another base."""
    from safetensors import SafetensorError, deserialize, safe_open

    try:
        with safe_open(path, "numpy") as file:
            fields = json.loads((file.metadata() or {})[NOTES])
        tensors = {name: _floats(tensor) for name, tensor in deserialize(path.read_bytes())}
        spellings = {int(token): text for token, text in fields["spellings"].items()}
        notes = AdapterNotes(**fields | {"spellings": spellings, "rows": tuple(fields["rows"])})
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not an adapter, or damaged ({type(error).__name__}); download it again") from None
    if sha256_of(base) != notes.base_sha256:
        raise ModelError(f"{path}: made for another base than {base}; download both again")
    return notes, tensors


def _floats(tensor: Mapping[str, Any]) -> Floats:
    """Return a tensor of a safetensors file in float32."""
    match tensor["dtype"]:
        case "BF16":  # numpy has no such type
            values = (np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
        case "F16" | "F32" as kind:
            values = np.frombuffer(tensor["data"], "<f2" if kind == "F16" else "<f4").astype(np.float32)
        case kind:
            raise ValueError(f"{kind}: expected BF16, F16 or F32")
    return values.reshape(tensor["shape"])


def _metadata(header: GGUFHeader, notes: AdapterNotes) -> list[bytes]:
    """Return the entries of the base's metadata, with name, file type and spellings changed."""
    entries = _entries(header)
    changes = {"general.name": _value(STRING, encode_text(notes.name))}
    changes["general.file_type"] = _value(UINT32, struct.pack("<I", FILE_TYPES[notes.quantization]))
    if TOKENS in entries:
        texts = [notes.spellings.get(i, text) for i, text in enumerate(header.require(TOKENS, list))]
        array = struct.pack("<IQ", STRING, len(texts)) + b"".join(map(encode_text, texts))
        changes[TOKENS] = _value(ARRAY, array)
    return [encode_text(name) + changes[name] if name in changes else entry for name, entry in entries.items()]


def _entries(header: GGUFHeader) -> dict[str, bytes]:
    """Return the raw entries of the metadata, including their names."""
    if len(header.files) > 1:
        raise ModelError(f"{header.path}: an adapter needs its base in one file; join it with llama-gguf-split --merge")
    entries = dict[str, bytes]()
    with header.path.open("rb") as file:
        data = file.read(header.data_offset)
    reader = GGUFReader(io.BufferedReader(io.BytesIO(data)), len(data), header.path)
    reader.take(4 + 4 + 8, "the head")
    for _ in range(reader.u64("the number of keys")):
        begin = reader.position
        (name,) = read_metadata(reader, 1)
        entries[name] = data[begin : reader.position]
    return entries


def _value(kind: int, value: bytes) -> bytes:
    return struct.pack("<I", kind) + value


def _write(path: Path, base: GGUFHeader, notes: AdapterNotes, tensors: list[_MergedTensor]) -> None:
    """Write a GGUF of version 3 atomically."""
    metadata = _metadata(base, notes)
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata))
    alignment = int(str(base.metadata.get("general.alignment", DEFAULT_ALIGNMENT)))

    def padding(size: int) -> bytes:
        return bytes(-size % alignment)

    offset = 0
    for tensor in tensors:
        sizes = struct.pack(f"<I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes)
        head += encode_text(tensor.name) + sizes + struct.pack("<IQ", tensor.kind, offset)
        offset += tensor.data.nbytes + -tensor.data.nbytes % alignment
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(head + padding(len(head)))
        for tensor in tensors:
            file.write(tensor.data.tobytes() + padding(tensor.data.nbytes))
    part.replace(path)
