"""Broken GGUF headers, one defect each: a ModelError of one line that says which. Built byte by byte."""

import os
import time
from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import read_header
from tests.support.gguf_bytes import MALFORMED, STRING, U8, U64, VALID, array, file, pair, text


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", VALID)
def test_the_builder_makes_valid_files(tmp_path: Path, name: str) -> None:
    read_header(write(tmp_path, VALID[name]))


@pytest.mark.parametrize("name", MALFORMED)
def test_one_line_says_what_is_wrong(tmp_path: Path, name: str) -> None:
    content, message = MALFORMED[name]
    path = write(tmp_path, content)
    with pytest.raises(ModelError, match=message) as error:
        read_header(path)
    line = str(error.value)
    assert line.isprintable()
    assert line.startswith(f"{path}: ")
    assert "; " in line, "what to do is missing"
    assert len(line) < len(str(path)) + 250


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file(pair("k", STRING, text("", 2**30)), data=0), "its header is larger than 128 MiB .at k"),
        (file(array("k", U64, 3_900_000, b""), array("l", U8, 3_900_000, b""), data=0), "metadata key 1 is empty"),
        (file(array("k", STRING, 2**31, b""), data=0), "all arrays together may have 4000000"),
        (file(n_tensors=100_000, data=0), "the name of tensor 0 is empty"),
        (file(n_pairs=10_000, data=0), "metadata key 0 is empty"),
    ],
    ids=["string", "arrays", "strings", "tensors", "keys"],
)
def test_large_sparse_file_with_large_claims_is_refused_quickly(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    os.truncate(path, 2**33)
    start = time.process_time()
    with pytest.raises(ModelError, match=message):
        read_header(path)
    assert time.process_time() - start < 1


def test_arrays_are_limited_together(tmp_path: Path) -> None:
    halves = [array(key, U8, 2_000_001, bytes(2_000_001)) for key in "ab"]
    read_header(write(tmp_path, file(halves[0])))
    with pytest.raises(ModelError, match="b has 2000001 elements, all arrays together may have 4000000"):
        read_header(write(tmp_path, file(*halves)))
