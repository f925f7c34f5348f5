"""Kind of a drafter by its header; targets and drafters that do not fit together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from localdflash.base.errors import ModelError
from localdflash.models.shapes.drafter_kind import check_drafter, drafter_of, has_head, head_bytes, kind_of
from localdflash.models.weights.gguf import read_header
from tests.support.gguf_writing import finish

TOKENS = ("a", "b", "c", "d")
HEAD = ("eh_proj", "enorm", "hnorm")


def write(
    path: Path, architecture: str, tensors: Sequence[str] = (), tokens: Sequence[str] = TOKENS, **metadata: Any
) -> Path:
    """A header of a model of 5 blocks and hidden size 8, with tensors of 8 numbers."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list(list(tokens))
    for name, value in ({"block_count": 5, "embedding_length": 8} | metadata).items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for name in tensors:
        writer.add_tensor(name, np.zeros(8, np.float32))
    finish(writer)
    return path


def with_head(path: Path, architecture: str = "qwen35", ahead: int = 1, tensors: Sequence[str] = HEAD) -> Path:
    names = ["token_embd.weight", *(f"blk.4.nextn.{name}.weight" for name in tensors)]
    return write(path, architecture, names, nextn_predict_layers=ahead)


def test_head_in_the_target_file_is_the_default_drafter(tmp_path: Path) -> None:
    target, other = with_head(tmp_path / "target.gguf"), write(tmp_path / "other.gguf", "llama")
    assert drafter_of(target, None) == target
    assert drafter_of(target, other) == other
    assert drafter_of(other, None) is None
    assert (kind_of(target, target), kind_of(other, other), kind_of(other, target)) == ("mtp", *["draft-model"] * 2)
    assert head_bytes(read_header(target)) == 3 * 32
    check_drafter(target, target)


@pytest.mark.parametrize(
    "how", [{"ahead": 0}, {"ahead": 2}, {"tensors": HEAD[:2]}, {"architecture": "glm4moe"}], ids=str
)
def test_unsupported_heads_are_not_drafters(how: dict[str, Any], tmp_path: Path) -> None:
    assert not has_head(read_header(with_head(tmp_path / "target.gguf", **how)))


@pytest.mark.parametrize(
    ("architecture", "metadata", "message"),
    [
        ("llama", {"tokens": ("a", "b", "x", "d")}, r"token 2 is 'x', expected 'c'"),
        ("gemma4-assistant", {}, "not a complete model"),
        ("qwen35", {"block_count": 1, "nextn_predict_layers": 1}, "not a complete model"),
    ],
)
def test_files_that_cannot_draft(architecture: str, metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    target = write(tmp_path / "target.gguf", "llama")
    with pytest.raises(ModelError, match=message) as raised:
        check_drafter(target, write(tmp_path / "drafter.gguf", architecture, **metadata))
    assert "\n" not in str(raised.value)
