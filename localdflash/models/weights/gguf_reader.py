"""Bounds-checked reader of GGUF headers: every length is checked before anything is read or allocated."""

import io
import struct
from pathlib import Path

from localdflash.base.errors import ModelError

MAX_HEADER_BYTES = 128 << 20  # vocabulary, merges and chat template; 16 MiB for 262k tokens
MAX_STRING_BYTES = 32 << 20  # some files contain their tokenizer.json, of up to 20 MB, as one string
MAX_QUOTED = 40  # bytes or characters of a file in an error message

_U64 = struct.Struct("<Q")


class GGUFReader:
    """Reader of a GGUF header. `what` names the item being read, for error messages."""

    def __init__(self, stream: io.BufferedReader, size: int, path: Path) -> None:
        self.path = path
        self.position = 0
        self._stream = stream
        self._size = size
        self._limit = min(size, MAX_HEADER_BYTES)

    def broken(self, problem: str) -> ModelError:
        """Return the error to raise for an invalid file."""
        return ModelError(f"{self.path}: broken GGUF file: {problem}; download or convert it again")

    def remaining(self) -> int:
        """Return the number of bytes that the header may still have."""
        return self._limit - self.position

    def take(self, count: int, what: str) -> bytes:
        """Read `count` bytes."""
        if count > self._limit - self.position:
            if self._limit < self._size and count <= self._size - self.position:
                raise self.broken(f"its header is larger than {MAX_HEADER_BYTES >> 20} MiB (at {what})")
            raise self.broken(f"{what} needs {count} bytes at byte {self.position}, the file has {self._size}")
        data = self._stream.read(count)
        if len(data) != count:
            raise self.broken(f"it became shorter while {what} was read")
        self.position += count
        return data

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int.from_bytes(self.take(8, what), "little")

    def texts(self, count: int, what: str) -> list[str]:
        """Read `count` strings, each a 64-bit length and that many bytes of UTF-8."""
        texts: list[str] = []
        while len(texts) < count:
            self._append_texts(texts, count, what)
            if len(texts) < count:  # it does not fit into a window, or is invalid
                size = self.u64(what)
                if MAX_STRING_BYTES < size <= self.remaining():
                    raise self.broken(f"{what} has {size} bytes, at most {MAX_STRING_BYTES} are allowed")
                texts.append(self._decoded(self.take(size, what), what))
        return texts

    def _append_texts(self, texts: list[str], count: int, what: str) -> None:
        """Append the strings that the stream has buffered, up to `count` in all; a read for each is slow."""
        window = self._stream.peek()[: self.remaining()]
        pieces = list[bytes]()
        at, last, missing, unpack = 0, len(window) - _U64.size, count - len(texts), _U64.unpack_from
        while missing and at <= last:
            begin = at + _U64.size
            end = begin + unpack(window, at)[0]
            if end > len(window):
                break
            pieces.append(window[begin:end])
            at, missing = end, missing - 1
        try:  # one call for all strings: faster than one for each
            decoded = b"\0".join(pieces).decode().split("\0")
        except UnicodeDecodeError:
            decoded = []
        texts += decoded if len(decoded) == len(pieces) else [self._decoded(piece, what) for piece in pieces]
        self.take(at, what)

    def name(self, what: str, max_bytes: int) -> str:
        """Read a name: not empty, not too long, and printable, so that C sees the same name."""
        size = self.u64(what)
        if max_bytes < size <= self.remaining():
            raise self.broken(f"{what} is longer than {max_bytes} bytes: {self.take(MAX_QUOTED, what)!r}")
        name = self._decoded(self.take(size, what), what)
        if not name:
            raise self.broken(f"{what} is empty")
        if not name.isprintable():
            raise self.broken(f"{what} has unprintable characters: {name[:MAX_QUOTED]!a}")
        return name

    def _decoded(self, data: bytes, what: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.broken(f"{what} is not UTF-8: {data[:MAX_QUOTED]!r}") from None


# Code in the file -> struct format.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # codes of value types

MAX_KEY_BYTES = 255  # the format allows 65535; keys in use are shorter than 64, and messages quote them
MAX_ARRAY_ELEMENTS = 4_000_000  # in all arrays together; a vocabulary of 262k tokens with merges has 1.3 million


def read_metadata(reader: GGUFReader, count: int) -> dict[str, object]:
    """Read the next `count` key-value pairs; ModelError for a duplicate key or an impossible value."""
    metadata: dict[str, object] = {}
    elements_left = MAX_ARRAY_ELEMENTS
    for index in range(count):
        key = reader.name(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise reader.broken(f"duplicate metadata key {key}")
        kind = reader.u32(key)
        if key == "general.alignment" and kind != UINT32:
            raise reader.broken(f"{key} has type {kind}, not unsigned 32-bit")
        if kind == ARRAY:
            values = _read_array(reader, key, elements_left)
            elements_left -= len(values)
            metadata[key] = values
        else:
            metadata[key] = _read_values(reader, key, kind, 1)[0]
    return metadata


def _read_array(reader: GGUFReader, key: str, max_elements: int) -> list[object]:
    kind = reader.u32(key)
    if kind == ARRAY:
        raise reader.broken(f"{key} is an array of arrays, which llama.cpp does not read")
    count = reader.u64(key)
    if count > max_elements:
        raise reader.broken(f"{key} has {count} elements, all arrays together may have {MAX_ARRAY_ELEMENTS}")
    return _read_values(reader, key, kind, count)


def _read_values(reader: GGUFReader, key: str, kind: int, count: int) -> list[object]:
    if kind == STRING:
        return [*reader.texts(count, key)]
    if kind == BOOL:
        flags = reader.take(count, key)
        if flags.strip(b"\0\1"):
            raise reader.broken(f"{key} holds a bool that is neither 0 nor 1")
        return [flag == 1 for flag in flags]
    if kind not in _NUMBERS:
        raise reader.broken(f"{key} has the unknown value type {kind}")
    layout = struct.Struct(f"<{count}{_NUMBERS[kind]}")
    return list(layout.unpack(reader.take(layout.size, key)))


def encode_text(text: str) -> bytes:
    """Return a string as GGUF files store it."""
    data = text.encode()
    return _U64.pack(len(data)) + data
