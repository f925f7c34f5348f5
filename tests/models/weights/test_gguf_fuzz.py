"""Damaged GGUF headers: only ModelError is raised, and llama.cpp's own parser accepts files that pass."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import GGUFHeader, read_header
from tests.support.gguf_writing import finish


def check(path: Path, content: bytes) -> GGUFHeader | None:
    """Return the header, or None after a ModelError of one printable line."""
    with path.open("r+b") as file:  # in place: file systems flush a file that is truncated first
        file.write(content)
        file.truncate()
    try:
        return read_header(path)
    except ModelError as error:
        line = str(error)
    assert line.isprintable()
    assert len(line) < len(str(path)) + 400
    return None


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    path.touch()
    return path


def test_truncation_at_every_byte(small_gguf: Path, damaged: Path) -> None:
    content = small_gguf.read_bytes()
    needed = max(info.offset + info.nbytes for info in read_header(small_gguf).tensors.values())
    assert needed < 4096
    for size in range(len(content)):
        header = check(damaged, content[:size])
        assert (header is not None) == (size >= needed), f"cut to {size} of {needed} bytes"


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the shortest header with every kind of structure."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "a")
    writer.add_custom_alignment(8)
    writer.add_array("s", ["a", "é"])
    writer.add_bool("b", True)
    writer.add_tensor("t", np.zeros((2, 1), np.float32))
    writer.add_tensor("u", np.zeros(2, np.float16))
    finish(writer)
    return path


def flips(content: bytes, end: int) -> Iterator[bytes]:
    for bit in range(8 * end):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def test_every_bit_of_the_header(tiny_gguf: Path, damaged: Path, c_parser_accepts: Callable[[Path], bool]) -> None:
    outcomes = {True: 0, False: 0}
    for content in flips(tiny_gguf.read_bytes(), read_header(tiny_gguf).data_offset):
        accepted = check(damaged, content) is not None
        outcomes[accepted] += 1
        if accepted:
            assert c_parser_accepts(damaged)
    assert min(outcomes.values()) > 100  # flips inside values pass, flips of structure do not


INTERESTING = [
    *(0, 1, 7, 31, 33, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
]
REPLACEMENTS = st.one_of(
    st.sampled_from([struct.pack("<Q", value) for value in INTERESTING]),
    st.sampled_from([struct.pack("<I", value % 2**32) for value in INTERESTING]),
    st.binary(max_size=40),
)
# (position, bytes to remove, bytes to insert)
DAMAGES = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 40), REPLACEMENTS), min_size=1, max_size=4)


def damage(content: bytes, damages: list[tuple[int, int, bytes]]) -> bytes:
    for place, dropped, put in damages:
        content = content[:place] + put + content[place + dropped :]
    return content


@settings(max_examples=150, deadline=None)
@given(damages=DAMAGES, keep_size=st.booleans())
def test_mutations(
    small_gguf: Path,
    damaged: Path,
    c_parser_accepts: Callable[[Path], bool],
    damages: list[tuple[int, int, bytes]],
    keep_size: bool,
) -> None:
    if keep_size:
        damages = [(place, len(put), put) for place, _, put in damages]
    header = check(damaged, damage(small_gguf.read_bytes(), damages))
    if header is None:
        return
    assert c_parser_accepts(damaged)
    reference = gguf.GGUFReader(damaged)
    fields = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert repr(sorted(header.metadata.items())) == repr(sorted(fields.items()))  # repr: NaN is not equal to itself
    assert {name: (info.offset, info.nbytes) for name, info in header.tensors.items()} == {
        tensor.name: (tensor.data_offset, tensor.n_bytes) for tensor in reference.tensors
    }
