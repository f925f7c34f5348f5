"""The key-value part of a GGUF header as plain Python values: int, float, bool, str, and lists of these."""

import struct

from localdflash.models.weights.reader import GGUFReader

# Code in the file -> struct format.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_UINT32 = 4
_BOOL = 7
_STRING = 8
_ARRAY = 9

# The format allows 65535; keys in use are shorter than 64, and messages quote them.
MAX_KEY_BYTES = 255
# Of all arrays of a file together: a vocabulary of 262k tokens with merges, scores and types holds 1.3 million.
MAX_ARRAY_ELEMENTS = 4_000_000


def read_metadata(reader: GGUFReader, count: int) -> dict[str, object]:
    """Read the next `count` key-value pairs; ModelError for a duplicate key or an impossible value."""
    metadata: dict[str, object] = {}
    elements_left = MAX_ARRAY_ELEMENTS
    for index in range(count):
        key = reader.name(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise reader.broken(f"metadata key {key} is there twice")
        kind = reader.u32(key)
        if key == "general.alignment" and kind != _UINT32:
            raise reader.broken(f"{key} has type {kind}, not unsigned 32-bit")
        if kind == _ARRAY:
            values = _read_array(reader, key, elements_left)
            elements_left -= len(values)
            metadata[key] = values
        else:
            metadata[key] = _read_values(reader, key, kind, 1)[0]
    return metadata


def _read_array(reader: GGUFReader, key: str, max_elements: int) -> list[object]:
    kind = reader.u32(key)
    if kind == _ARRAY:
        raise reader.broken(f"{key} is an array of arrays, which llama.cpp does not read")
    count = reader.u64(key)
    if count > max_elements:
        raise reader.broken(f"{key} has {count} elements, all arrays together may have {MAX_ARRAY_ELEMENTS}")
    return _read_values(reader, key, kind, count)


def _read_values(reader: GGUFReader, key: str, kind: int, count: int) -> list[object]:
    if kind == _STRING:
        return [*reader.texts(count, key)]
    if kind == _BOOL:
        flags = reader.take(count, key)
        if flags.strip(b"\0\1"):
            raise reader.broken(f"{key} holds a bool that is neither 0 nor 1")
        return [flag == 1 for flag in flags]
    if kind not in _NUMBERS:
        raise reader.broken(f"{key} has the unknown value type {kind}")
    layout = struct.Struct(f"<{count}{_NUMBERS[kind]}")
    return list(layout.unpack(reader.take(layout.size, key)))
