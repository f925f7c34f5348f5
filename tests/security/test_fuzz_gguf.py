"""GGUF headers, mutated and made up: what passes, llama.cpp's parser takes too; else one line, soon."""

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import GGUFHeader, read_header
from tests.security.fuzzing import fuzz, long_enough
from tests.support.gguf_bytes import MALFORMED, VALID, array, file, pair, tensor, text

LARGEST = 1 << 33  # of the file on the disk, most of it a hole
# Seconds and bytes that a header may take: of a small file, and of one whose hole is a header of the largest size.
SMALL = (1.0, 32 << 20)
HUGE = (10.0, 300_000_000)

LIES = [
    *(0, 1, 7, 31, 33, 2**16, 2**25 - 99, 2**26, 3_999_999, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**61, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1),
]
NUMBERS = st.sampled_from(LIES) | st.integers(0, 300)
SIZES = NUMBERS.map(lambda number: struct.pack("<Q", number)) | NUMBERS.map(lambda n: struct.pack("<I", n % 2**32))

# Damages of a valid file: bytes replaced, inserted, dropped; a length made one more or less; bits flipped; a splice.
PLACES = st.integers(0, 4095)  # of 4096 parts of the file
DAMAGES = st.one_of(
    st.tuples(st.just("replace"), PLACES, SIZES | st.binary(max_size=24)),
    st.tuples(st.just("insert"), PLACES, SIZES | st.binary(max_size=24)),
    st.tuples(st.just("drop"), PLACES, st.integers(1, 40) | st.just(1 << 20)),
    st.tuples(st.just("add"), PLACES, st.sampled_from([1, -1, 8, -8, 2**31, 2**63])),
    st.tuples(st.just("flip"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("splice"), PLACES, st.tuples(PLACES, st.integers(1, 64))),
)

# Headers of parts that may each be right or wrong.
NAMES = st.sampled_from(["", "t", "u", "general.alignment", "k" * 63, "k" * 64, "k" * 256, "k\0", "\u202e"]) | st.text(
    max_size=3
)
STRINGS = st.builds(text, st.binary(max_size=9), st.none() | NUMBERS)
PAYLOADS = st.binary(max_size=16) | SIZES | STRINGS
KINDS = st.integers(0, 13)
PAIRS = st.builds(pair, NAMES, KINDS, PAYLOADS) | st.builds(array, NAMES, KINDS, NUMBERS, PAYLOADS)
TENSORS = st.builds(
    tensor,
    NAMES,
    st.sampled_from([(8,), (32,), (2, 4), (256, 1)]) | st.lists(NUMBERS, max_size=5).map(tuple),
    st.sampled_from([0, 1, 2, 8, 12, 14, 24, 27, 30, 39, 2**32 - 1]),
    st.sampled_from([0, 0, 0, 32, 64]) | NUMBERS,
)
MADE_UP = st.builds(
    lambda pairs, tensors, **rest: file(*pairs, tensors=tuple(tensors), **rest),
    st.lists(PAIRS, max_size=3),
    st.lists(TENSORS, max_size=3),
    data=st.integers(0, 200),
    version=st.sampled_from([2, 3]),
    n_tensors=st.sampled_from([None] * 40 + LIES),
    n_pairs=st.sampled_from([None] * 40 + LIES),
    alignment=st.sampled_from([1, 8, 32, 64]),
)
BROKEN = [content for content, _ in MALFORMED.values()]
HOLES = st.sampled_from([0, 0, 0, 0, 1, 1 << 20, LARGEST])


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    content = draw(st.just(whole) | st.sampled_from([*VALID.values()]) | st.sampled_from(BROKEN))
    for damage in draw(st.lists(DAMAGES, min_size=1, max_size=4)):
        content = damaged(content, *damage)
    return content


def damaged(content: bytes, how: str, place: int, what: int | bytes | tuple[int, int]) -> bytes:
    at = place * len(content) // 4096
    match how, what:
        case "replace", bytes():
            put, dropped = what, len(what)
        case "insert", bytes():
            put, dropped = what, 0
        case "drop", int():
            put, dropped = b"", what
        case "add", int():
            at = max(0, min(at, len(content) - 8))
            number = int.from_bytes(content[at : at + 8], "little") + what
            put, dropped = struct.pack("<Q", number % 2**64), 8
        case "flip", int():
            put, dropped = bytes(byte ^ 1 << what for byte in content[at : at + 1]), 1
        case "splice", (int() as start, int() as count):
            start = start * len(content) // 4096
            put, dropped = content[start : start + count], 0
        case _:
            raise AssertionError(how)
    return content[:at] + put + content[at + dropped :]


def check(path: Path, content: bytes, hole: int) -> GGUFHeader | None:
    """The header, or None after a ModelError of one printable line; within time and memory either way."""
    with path.open("r+b") as stream:
        stream.write(content)
        stream.truncate()
        if hole:
            os.truncate(stream.fileno(), len(content) + hole)
    header, line = None, ""
    tracemalloc.start()
    start = time.thread_time()
    try:
        header = read_header(path)
    except ModelError as error:
        line = str(error)
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    seconds, memory = HUGE if hole == LARGEST else SMALL
    assert time.thread_time() - start < seconds
    assert taken < memory
    if header is None:
        assert line.isprintable()
        assert line.startswith(f"{path}: ")
        assert len(line) < len(str(path)) + 400
    return header


def is_safe(header: GGUFHeader, size: int) -> None:
    """Every tensor in the file, none on another; names that are what C sees."""
    end = header.data_offset
    for name, info in header.tensors.items():
        assert info.name == name
        assert name.isprintable()
        assert len(name.encode()) < 64
        assert info.offset >= end
        end = info.offset + info.nbytes
    assert not header.tensors or end <= size
    assert all(key.isprintable() for key in header.metadata)


@pytest.mark.nightly
@long_enough
def test_fuzz(tmp_path: Path, small_gguf: Path, c_parser_accepts: Callable[[Path], bool]) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    outcomes = {"read": 0, "refused": 0}

    def one(case: tuple[bytes, int]) -> None:
        content, hole = case
        header = check(path, content, hole)
        outcomes["refused" if header is None else "read"] += 1
        if header:
            is_safe(header, len(content) + hole)
            assert c_parser_accepts(path)

    fuzz(st.tuples(mutated(small_gguf.read_bytes()) | MADE_UP, HOLES), one)
    assert min(outcomes.values()) > 0, outcomes


# What the fuzzer found.


@pytest.mark.parametrize("content", [file(text("k", 2**26), n_pairs=1), file(tensors=(text("t", 2**26),))])
def test_a_name_that_is_too_long_is_not_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert check(path, content, 1 << 27) is None
