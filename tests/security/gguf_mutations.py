"""Mutations of a parsed GGUF file: metadata values and tensor records."""

import struct
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from hypothesis import strategies as st

from localdflash.models.weights.ggml_types import BY_CODE
from tests.support.gguf_bytes import ARRAY, BOOL, F32, F64, STRING, array, file, pair, tensor, text

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "?", 10: "Q", 11: "q", 12: "d"}
FLOATS = (0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3e38)
TEXTS = (b"", b"none", b"linear", b"yarn", b"longrope", b"llama", b"gpt2", b"qwen2", b"bert", b"\0", b"x" * 300)
AXES = (1, 2, 3, 31, 32, 33, 64, 256, 1 << 20)
MOST_BYTES = 1 << 24  # of a tensor that is made larger
RECORDS = ("drop", "double", "names", "shapes", "turn", "axis", "kind", "fewer", "more", "blank")


@dataclass(frozen=True)
class Pair:
    """Metadata key and value: one item, or the items of an array of `element`s."""

    key: str
    kind: int
    element: int
    items: tuple[bytes, ...]

    def __repr__(self) -> str:
        """Shorten the value for a report."""
        return f"{self.key} ({self.kind}, {self.element}): {len(self.items)} of {self.items[:3]!r:.80}"

    @property
    def of(self) -> int:
        """Return the type of the items."""
        return self.element if self.kind == ARRAY else self.kind


@dataclass(frozen=True)
class Tensor:
    """Tensor record and its bytes; `build` cuts or repeats them to the record's size."""

    name: str
    ne: tuple[int, ...]
    kind: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Parsed:
    """GGUF file, parsed."""

    pairs: tuple[Pair, ...]
    tensors: tuple[Tensor, ...]

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Shorten what Hypothesis prints."""
        printer.text(repr(self))


def parse(content: bytes) -> Parsed:
    """Parse a valid file with the default alignment."""
    at = 8

    def number(layout: str) -> int:
        nonlocal at
        value: int = struct.unpack_from(f"<{layout}", content, at)[0]
        at += struct.calcsize(layout)
        return value

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return content[at - count : at]

    def item(kind: int) -> bytes:
        return take(number("Q")) if kind == STRING else take(struct.calcsize(FORMATS[kind]))

    n_tensors, n_pairs = number("Q"), number("Q")
    pairs = []
    for _ in range(n_pairs):
        key, kind, element, count = take(number("Q")).decode(), number("I"), 0, 1
        if kind == ARRAY:
            element, count = number("I"), number("Q")
        pairs.append(Pair(key, kind, element, tuple(item(element or kind) for _ in range(count))))
    records = []
    for _ in range(n_tensors):
        name = take(number("Q")).decode()
        ne = tuple(number("Q") for _ in range(number("I")))
        records.append((name, ne, number("I"), number("Q")))
    start = -(-at // 32) * 32
    tensors = [
        Tensor(name, ne, kind, content[start + offset :][: _size(ne, kind)]) for name, ne, kind, offset in records
    ]
    return Parsed(tuple(pairs), tuple(tensors))


def build(parsed: Parsed) -> bytes:
    """Write the file."""
    pairs = []
    for one in parsed.pairs:
        payload = b"".join(text(item) if one.of == STRING else item for item in one.items)
        if one.kind == ARRAY:
            pairs.append(array(one.key, one.element, len(one.items), payload))
        else:
            pairs.append(pair(one.key, one.kind, payload))
    records, data = [], bytearray()
    for info in parsed.tensors:
        records.append(tensor(info.name, info.ne, info.kind, len(data)))
        size = min(_size(info.ne, info.kind), MOST_BYTES)
        data += (info.data * (size // max(len(info.data), 1) + 1))[:size]
        data += bytes(-len(data) % 32)
    return file(*pairs, tensors=tuple(records), data=0) + data


def _size(ne: tuple[int, ...], kind: int) -> int:
    known = BY_CODE.get(kind)
    return prod(ne) // known.block_weights * known.block_bytes if known is not None else 32


@st.composite
def mutated(draw: st.DrawFn, base: Parsed) -> Parsed:
    """Apply one to three changes."""
    changed = base
    for _ in range(draw(st.integers(1, 3))):
        changed = draw(_value(changed) | _value(changed) | _key(changed) | _tensor(changed))
    return changed


@st.composite
def _value(draw: st.DrawFn, parsed: Parsed) -> Parsed:
    """Change the value of a key."""
    at = draw(st.integers(0, len(parsed.pairs) - 1))
    old = parsed.pairs[at]
    if old.kind != ARRAY:
        new = replace(old, items=(draw(_item(old.kind)),))
        if draw(st.integers(0, 9)) == 0:  # of another type
            kind = draw(st.sampled_from([*FORMATS, STRING]))
            new = replace(old, kind=kind, items=(draw(_item(kind)),))
        elif draw(st.integers(0, 9)) == 0:  # an array of it
            new = replace(new, kind=ARRAY, element=old.kind, items=new.items * draw(st.sampled_from([0, 1, 3, 600])))
    else:
        new = replace(old, items=draw(_items(old)))
    return replace(parsed, pairs=(*parsed.pairs[:at], new, *parsed.pairs[at + 1 :]))


@st.composite
def _items(draw: st.DrawFn, old: Pair) -> tuple[bytes, ...]:
    items = old.items
    first, second = (draw(st.integers(0, max(len(items) - 1, 0))) for _ in range(2))
    before, after, other = items[:first], items[first + 1 :], draw(_item(old.element))
    return draw(
        st.sampled_from(
            [
                (*before, other, *after),
                (*before, *after),
                (*before, *items[second : second + 1], *after),  # one twice
                (*items, *before),
                before,
                items[::-1],
                (other,) * len(items),
                (),
            ]
        )
    )


def _item(kind: int) -> st.SearchStrategy[bytes]:
    if kind == STRING:
        return st.sampled_from(TEXTS)
    if kind in (F32, F64):
        return st.sampled_from(FLOATS).map(lambda value: struct.pack(f"<{FORMATS[kind]}", value))
    if kind == BOOL:
        return st.sampled_from([b"\0", b"\1"])
    size = struct.calcsize(FORMATS[kind])
    signed = FORMATS[kind].islower()
    top = 2 ** (8 * size - signed) - 1
    least = -top - 1 if signed else 0
    sizes = [0, 1, 2, 3, 7, 8, 63, 64, 100, 511, 512, 513, 1023, 4096, 1 << 16, 1 << 20, 1 << 24, 2**31 - 1, 2**32 - 2]
    values = {least, -1, top, *sizes}
    possible = sorted(value for value in values if least <= value <= top)
    return st.sampled_from(possible).map(lambda value: value.to_bytes(size, "little", signed=signed))


@st.composite
def _key(draw: st.DrawFn, parsed: Parsed) -> Parsed:
    """Drop or double a key, or swap two values."""
    pairs = [*parsed.pairs]
    first, second = (draw(st.integers(0, len(pairs) - 1)) for _ in range(2))
    match draw(st.sampled_from(["drop", "drop", "double", "swap"])):
        case "drop":
            del pairs[first]
        case "double":
            pairs.insert(second, pairs[first])
        case "swap":
            keys = pairs[first].key, pairs[second].key
            pairs[first], pairs[second] = replace(pairs[second], key=keys[0]), replace(pairs[first], key=keys[1])
    return replace(parsed, pairs=tuple(pairs)) if pairs else parsed


@st.composite
def _tensor(draw: st.DrawFn, parsed: Parsed) -> Parsed:
    """Drop, double, rename or reshape a tensor, or change its type."""
    tensors = [*parsed.tensors]
    first, second = (draw(st.integers(0, len(tensors) - 1)) for _ in range(2))
    one = tensors[first]
    match draw(st.sampled_from(RECORDS)):
        case "drop":
            del tensors[first]
        case "double":
            tensors.append(one if draw(st.booleans()) else replace(one, name=f"{one.name}.more"))
        case "names":
            other = tensors[second]
            tensors[first], tensors[second] = replace(one, name=other.name), replace(other, name=one.name)
        case "shapes":
            tensors[first] = replace(one, ne=tensors[second].ne, kind=tensors[second].kind)
        case "turn":
            tensors[first] = replace(one, ne=one.ne[::-1])
        case "axis":
            at = draw(st.integers(0, len(one.ne) - 1))
            size = draw(st.sampled_from([*AXES, one.ne[at] * 2, max(one.ne[at] // 2, 1)]))
            tensors[first] = replace(one, ne=(*one.ne[:at], size, *one.ne[at + 1 :]))
        case "kind":
            tensors[first] = replace(one, kind=draw(st.sampled_from([*BY_CODE])))
        case "fewer":
            tensors[first] = replace(one, ne=one.ne[:-1] or (1,))
        case "more":
            tensors[first] = replace(one, ne=(*one.ne, draw(st.sampled_from([1, 2])))[:4])
        case "blank":
            tensors[first] = replace(one, data=draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x00\x7c"])))
    return replace(parsed, tensors=tuple(tensors)) if tensors else parsed
