"""A base GGUF and a low-rank adapter as one GGUF: the same bytes on every machine, so that a registry can know them.

An adapter is a safetensors file: for a matrix T of the base `T.up` [out, rank] and `T.down` [rank, in], for the
embedding E `E.rows` that replace some of its rows, and notes in its metadata. Sums are made of single multiplications
and additions in float64, in one order, for a matrix product would round as the processor's library likes; metadata
that does not change is copied byte for byte.
"""

import hashlib
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

FILE_TYPES = {"Q4_1": 3, "Q8_0": 7, "Q5_1": 9}  # llama_ftype
EMBEDDING, TOKENS = "token_embd.weight", "tokenizer.ggml.tokens"
UINT32, STRING, ARRAY = 4, 8, 9  # types of GGUF's metadata
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the others
NOTES = "localdflash"  # the key of the notes in the adapter's metadata


@dataclass(frozen=True)
class AdapterNotes:
    """What an adapter is for, and what a merged file says of itself."""

    base_sha256: str
    name: str
    quantization: str  # of the matrices that change, one of `FILE_TYPES`
    rows: tuple[int, ...]  # of the embedding
    spellings: Mapping[int, str]  # of tokens that get another name

    def as_metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        return {NOTES: json.dumps(asdict(self))}


Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class _Stored(NamedTuple):
    """A tensor as a file has it. `sizes` are ggml's, the innermost first."""

    name: str
    sizes: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: Bytes


def sha256_of(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def merge(base: Path, adapter: Path, path: Path) -> None:
    """Write base plus adapter to `path`; ModelError where they do not belong together."""
    notes, numbers = read_adapter(adapter, base)
    header = read_header(base)
    data = np.memmap(base, np.uint8, "r")
    tensors = [_changed(tensor, data, notes, numbers) for tensor in header.tensors.values()]
    if numbers:
        raise ModelError(f"{adapter}: {min(numbers)} has no place in {base}")
    _write(path, header, notes, tensors)


def write_vocabulary(base: Path, notes: AdapterNotes, path: Path) -> None:
    """Return the metadata of the merged file without any weights: enough for a tokenizer."""
    _write(path, read_header(base), notes, [])


def _changed(tensor: TensorInfo, file: Bytes, notes: AdapterNotes, numbers: dict[str, Floats]) -> _Stored:
    """Return a tensor of the base with what the adapter adds, which is taken out of `numbers`."""
    name, kind = tensor.name, gguf.GGMLQuantizationType(int(tensor.ggml_type))
    data = file[tensor.offset : tensor.offset + tensor.nbytes].reshape(*tensor.shape[:-1], -1)
    if f"{name}.rows" in numbers:
        data = data.copy()
        data[list(notes.rows)] = gguf.quantize(numbers.pop(f"{name}.rows"), kind).view(np.uint8)
    elif f"{name}.up" in numbers:
        values = _sum(gguf.dequantize(data, kind), numbers.pop(f"{name}.up"), numbers.pop(f"{name}.down"))
        kind = gguf.GGMLQuantizationType[notes.quantization]
        data = gguf.quantize(values, kind).view(np.uint8)
    return _Stored(name, tensor.shape[::-1], kind, data)


def _sum(base: Floats, up: Floats, down: Floats) -> Floats:
    """Base + up @ down."""
    total = base.astype(np.float64)
    for column, row in zip(up.T.astype(np.float64), down.astype(np.float64), strict=True):
        total += column[:, None] * row
    return total.astype(np.float32)


def read_adapter(path: Path, base: Path) -> tuple[AdapterNotes, dict[str, Floats]]:
    """Return the notes and numbers of an adapter; ModelError where it is damaged, or made for another base."""
    from safetensors import SafetensorError, deserialize, safe_open

    try:
        with safe_open(path, "numpy") as file:
            fields = json.loads((file.metadata() or {})[NOTES])
        tensors = {name: _floats(stored) for name, stored in deserialize(path.read_bytes())}
        spellings = {int(token): text for token, text in fields["spellings"].items()}
        notes = AdapterNotes(**fields | {"spellings": spellings, "rows": tuple(fields["rows"])})
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: no adapter, or a damaged one ({type(error).__name__})") from None
    if sha256_of(base) != notes.base_sha256:
        raise ModelError(f"{path}: made for another file than {base}")
    return notes, tensors


def _floats(stored: Mapping[str, Any]) -> Floats:
    """Return a tensor of a safetensors file in float32."""
    match stored["dtype"]:
        case "BF16":  # numpy has no such type
            values = (np.frombuffer(stored["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
        case "F16" | "F32" as kind:
            values = np.frombuffer(stored["data"], "<f2" if kind == "F16" else "<f4").astype(np.float32)
        case kind:
            raise ValueError(f"{kind}: expected BF16, F16 or F32")
    return values.reshape(stored["shape"])


def _metadata(header: GGUFHeader, notes: AdapterNotes) -> list[bytes]:
    """Return the entries of the base's metadata, with name, file type and spellings changed."""
    entries = _entries(header)
    changes = {"general.name": _value(STRING, _text(notes.name))}
    changes["general.file_type"] = _value(UINT32, struct.pack("<I", FILE_TYPES[notes.quantization]))
    if TOKENS in entries:
        texts = [notes.spellings.get(i, text) for i, text in enumerate(header.require(TOKENS, list))]
        array = struct.pack("<IQ", STRING, len(texts)) + b"".join(map(_text, texts))
        changes[TOKENS] = _value(ARRAY, array)
    return [_text(name) + changes.get(name, value) for name, value in entries.items()]


def _entries(header: GGUFHeader) -> dict[str, bytes]:
    """Return the metadata as the file spells it, type and value; its header was checked."""
    if len(header.files) > 1:
        raise ModelError(f"{header.path}: an adapter needs its base in one file: join it with llama-gguf-split --merge")
    with header.path.open("rb") as file:
        data = file.read(header.data_offset)
    at, found = len(b"GGUF") + 4 + 8, dict[str, bytes]()
    (count,) = struct.unpack_from("<Q", data, at)
    at += 8
    for _ in range(count):
        start, at = at + 8, _after(data, at, STRING)
        name, begin = data[start:at].decode(), at
        (kind,) = struct.unpack_from("<I", data, at)
        at = _after(data, at + 4, kind)
        found[name] = data[begin:at]
    return found


def _after(data: bytes, at: int, kind: int) -> int:
    """Where a value of this type ends."""
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind != ARRAY:
        return at + SIZES[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in SIZES:
        return at + int(count) * SIZES[inner]
    for _ in range(count):
        at = _after(data, at, inner)
    return at


def _value(kind: int, value: bytes) -> bytes:
    return struct.pack("<I", kind) + value


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _write(path: Path, base: GGUFHeader, notes: AdapterNotes, tensors: list[_Stored]) -> None:
    """Return a GGUF of version 3, as a whole or not at all."""
    metadata = _metadata(base, notes)
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata))
    alignment = int(str(base.metadata.get("general.alignment", DEFAULT_ALIGNMENT)))

    def padding(size: int) -> bytes:
        return bytes(-size % alignment)

    offset = 0
    for one in tensors:
        sizes = struct.pack(f"<I{len(one.sizes)}Q", len(one.sizes), *one.sizes)
        head += _text(one.name) + sizes + struct.pack("<IQ", one.kind, offset)
        offset += one.data.nbytes + -one.data.nbytes % alignment
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(head + padding(len(head)))
        for one in tensors:
            file.write(one.data.tobytes() + padding(one.data.nbytes))
    part.replace(path)
