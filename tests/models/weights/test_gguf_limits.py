"""Metadata values that would crash, hang or exhaust C code are refused with the header, by name and in one line."""

import math
import os
import struct
import time
from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import GGUFHeader, read_header
from tests.support.gguf_bytes import F32, MALFORMED, STRING, U8, U32, U64, VALID, array, file, pair, text, u32

ARCHITECTURE = pair("general.architecture", STRING, text("qwen3"))


def read(tmp_path: Path, *pairs: bytes) -> GGUFHeader:
    path = tmp_path / "model.gguf"
    path.write_bytes(file(ARCHITECTURE, *pairs))
    return read_header(path)


def number(name: str, value: float) -> bytes:
    if isinstance(value, int):
        return pair(f"qwen3.{name}", U32, u32(value))
    return pair(f"qwen3.{name}", F32, struct.pack("<f", value))


def tokens(*spelled: str) -> bytes:
    return array("tokenizer.ggml.tokens", STRING, len(spelled), b"".join(map(text, spelled)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_count", 0, "0, expected 1 to 512"),
        ("block_count", 513, "513, expected 1 to 512"),
        ("embedding_length", 2**20 + 1, "1048577, expected 1 to 1048576"),
        ("attention.head_count", 2**32 - 1, "4294967295, expected 0 to 1048576"),
        ("attention.layer_norm_rms_epsilon", math.nan, "nan, not a finite number"),
        ("attention.layer_norm_rms_epsilon", -1.0, "-1.0, expected 0 or more"),
        *(("rope.freq_base", value, f"{value}, expected 1 or more") for value in (0.0, -1e4, 2.0**-140)),
        ("rope.freq_base", math.nan, "nan, not a finite number"),
        ("rope.freq_base_swa", math.inf, "inf, not a finite number"),
        ("a.number.of.the.future", -math.inf, "-inf, not a finite number"),
    ],
)
def test_out_of_range_number_is_refused(name: str, value: float, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        read(tmp_path, number(name, value))
    path = tmp_path / "model.gguf"
    assert str(error.value) == f"{path}: broken GGUF file: qwen3.{name} is {message}; download or convert it again"


def test_numbers_of_layers(tmp_path: Path) -> None:
    def heads(*counts: int) -> bytes:
        return array("qwen3.attention.head_count", U32, len(counts), b"".join(map(u32, counts)))

    read(tmp_path, heads(0, 4, 8))
    with pytest.raises(ModelError, match=r"qwen3\.attention\.head_count is 4294967295, expected 0 to 1048576"):
        read(tmp_path, heads(4, 2**32 - 1))


@pytest.mark.parametrize(
    ("part", "total"), [("expert_used_count", "expert_count"), ("nextn_predict_layers", "block_count")]
)
def test_counts_do_not_exceed_totals(part: str, total: str, tmp_path: Path) -> None:
    read(tmp_path, number(total, 4), number(part, 4))
    with pytest.raises(ModelError, match=f"qwen3.{part} is 5, but {total} is 4"):
        read(tmp_path, number(total, 4), number(part, 5))
    with pytest.raises(ModelError, match=f"qwen3.{total} is missing, but {part} is 5"):
        read(tmp_path, number(part, 5))


def test_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    def scaling(kind: str) -> bytes:
        return pair("qwen3.rope.scaling.type", STRING, text(kind))

    read(tmp_path, scaling("yarn"))
    with pytest.raises(ModelError, match=r"scaling\.type is 'yearn', none of none, linear, yarn, longrope"):
        read(tmp_path, scaling("yearn"))


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        (("a", "b", "a"), "tokens 0 and 2 of the vocabulary are both 'a'"),
        (("a", "a\0b"), "tokens 0 and 1 of the vocabulary are both 'a'"),
        (("", "[EMPTY_0]"), r"tokens 0 and 1 of the vocabulary are both '\[EMPTY_0\]'"),
    ],
)
def test_two_equal_tokens(spelled: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, tokens(*spelled))


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
