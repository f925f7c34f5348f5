"""Fuzzer of GGUF headers: llama.cpp's parser accepts what passes, everything else is one error line, soon."""

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
from tests.models.weights.test_gguf_fuzz import DAMAGES, INTERESTING, damage
from tests.security.fuzzing import fuzz, long_enough
from tests.support.gguf_bytes import MALFORMED, VALID, array, file, pair, tensor, text

LARGEST = 1 << 33  # of the file on the disk, most of it a hole
# Seconds and bytes that a header may take: of a small file, and of one whose hole is a header of the largest size.
SMALL = (1.0, 32 << 20)
HUGE = (10.0, 300_000_000)
NUMBERS = st.sampled_from(INTERESTING) | st.integers(0, 300)
SIZES = NUMBERS.map(lambda number: struct.pack("<Q", number)) | NUMBERS.map(lambda n: struct.pack("<I", n % 2**32))

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
    n_tensors=st.sampled_from([None] * 40 + INTERESTING),
    n_pairs=st.sampled_from([None] * 40 + INTERESTING),
    alignment=st.sampled_from([1, 8, 32, 64]),
)
BROKEN = [content for content, _ in MALFORMED.values()]
HOLES = st.sampled_from([0, 0, 0, 0, 1, 1 << 20, LARGEST])


def check(path: Path, content: bytes, hole: int) -> GGUFHeader | None:
    """Return the header, or None if it is refused in one printable line; check time and memory."""
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
    """Check that tensors lie in the file without overlap and that names are printable."""
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

    wholes = st.sampled_from([small_gguf.read_bytes(), *VALID.values(), *BROKEN])
    fuzz(st.tuples(st.builds(damage, wholes, DAMAGES) | MADE_UP, HOLES), one)
    assert min(outcomes.values()) > 0, outcomes


@pytest.mark.parametrize("content", [file(text("k", 2**26), n_pairs=1), file(tensors=(text("t", 2**26),))])
def test_too_long_names_are_not_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert check(path, content, 1 << 27) is None
