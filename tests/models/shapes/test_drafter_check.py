"""Files that are no DFlash drafter, and the bytes of blocks that are not loaded."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.shapes.drafter_check import check_drafter, count_prediction_bytes
from localdflash.models.weights.gguf import read_header
from tests.support.gguf_writing import finish


def write(path: Path, architecture: str, prediction_blocks: int = 0) -> Path:
    """Write a header of a model with 5 blocks of 8 floats."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.block_count", 5)
    writer.add_uint32(f"{architecture}.nextn_predict_layers", prediction_blocks)
    for block in range(5):
        writer.add_tensor(f"blk.{block}.attn_norm.weight", np.zeros(8, np.float32))
    finish(writer)
    return path


@pytest.mark.parametrize("architecture", ["llama", "eagle3", "gemma4-assistant"])
def test_files_of_other_kinds_are_refused(architecture: str, tmp_path: Path) -> None:
    target = write(tmp_path / "target.gguf", "llama")
    with pytest.raises(ModelError, match=rf"architecture '{architecture}', not a DFlash drafter; see"):
        check_drafter(target, write(tmp_path / "drafter.gguf", architecture))


@pytest.mark.parametrize(
    ("tensor", "architecture", "said"),
    [
        ("lilicorr.out_head.weight", "", "drafters with a LiLiCorr head"),
        ("x", "laguna", "another network than Qwen3's"),
    ],
)
def test_drafters_that_no_reader_knows_are_refused_in_one_line(
    tensor: str, architecture: str, said: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "drafter.gguf", "dflash")
    writer.add_tensor(tensor, np.zeros(8, np.float32))
    if architecture:
        writer.add_string("dflash.decoder_arch", architecture)
    finish(writer)
    with pytest.raises(ModelError, match=said) as caught:
        config_of_gguf(read_header(tmp_path / "drafter.gguf"))
    assert str(tmp_path) in str(caught.value)
    assert "; use " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_prediction_blocks_are_the_last_ones(tmp_path: Path) -> None:
    assert count_prediction_bytes(read_header(write(tmp_path / "a.gguf", "qwen35", 2))) == 2 * 32
    assert count_prediction_bytes(read_header(write(tmp_path / "b.gguf", "llama"))) == 0
