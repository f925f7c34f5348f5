"""Digest of the target that a drafter was trained for, and the warning for another target."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from localdflash.models.shapes.fingerprint import fingerprint_of, mismatch
from localdflash.models.weights.gguf import GGUFHeader, read_header
from tests.support.gguf_writing import finish
from tests.support.tiny_models import SHAPE, write_target


@pytest.fixture
def target(tmp_path: Path) -> GGUFHeader:
    return read_header(write_target(tmp_path / "target.gguf", SHAPE))


def changed(target: GGUFHeader, path: Path, tensor: str = "", at: int = 0) -> GGUFHeader:
    """Return the model with other metadata and alignment; flip a bit of `tensor`."""
    reader, writer = gguf.GGUFReader(target.path), gguf.GGUFWriter(path, "qwen3")
    writer.add_custom_alignment(256)
    writer.add_chat_template("{{ 'mended' }}")
    writer.add_name("renamed")
    for name, field in reader.fields.items():
        if name.startswith("qwen3."):
            writer.add_key_value(name, field.contents(), field.types[0])
    for one in reversed(reader.tensors):
        data = one.data.copy()
        if one.name == tensor:
            data.reshape(-1).view("uint8")[at] ^= 1
        writer.add_tensor(one.name, data, raw_dtype=one.tensor_type)
    finish(writer)
    return read_header(path)


def test_metadata_order_and_alignment_do_not_matter(target: GGUFHeader, tmp_path: Path) -> None:
    actual, again = fingerprint_of(target), fingerprint_of(changed(target, tmp_path / "again.gguf"))
    assert again == replace(actual, name="again.gguf")
    assert (actual.name, actual.kind) == ("target.gguf", "qwen3, 3 blocks of 128, Q8_0")
    assert len(actual.digest) == 32


@pytest.mark.parametrize("tensor", ["blk.1.attn_q.weight", "output_norm.weight"])
def test_fingerprint_changes_with_weights(tensor: str, target: GGUFHeader, tmp_path: Path) -> None:
    other = changed(target, tmp_path / "target.gguf.other", tensor)
    assert fingerprint_of(other).digest != fingerprint_of(target).digest
    assert fingerprint_of(other).kind == fingerprint_of(target).kind


# The warning


def test_one_line_for_another_quantization(target: GGUFHeader, tmp_path: Path) -> None:
    expected = fingerprint_of(target, 2.304)
    other = read_header(write_target(tmp_path / "other.gguf", SHAPE, "Q4_0"))
    assert mismatch(tmp_path / "drafter.gguf", expected, other) == (
        "drafter.gguf was trained for target.gguf (qwen3, 3 blocks of 128, Q8_0), with 2.30 tokens per verify step;"
        " other.gguf is qwen3, 3 blocks of 128, Q4_0, so acceptance may be lower;"
        " `localdflash train drafter --pair` trains one for it"
    )
