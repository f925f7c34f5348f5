"""A drafter that is given a short vocabulary: what its files say, what stays, and what is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from localdflash.base.errors import ModelError, UsageError
from localdflash.lab.train.shorten import check, shorten
from localdflash.models.weights.gguf import read_header
from tests.support.random_drafters import config_of, random_weights, write_gguf
from tests.support.shortened import shortened

OURS = {"localdflash.short_vocabulary"}


def test_nothing_else_changes_in_a_gguf(tiny_pair: Path, tmp_path: Path) -> None:
    folder = shortened(tiny_pair, tmp_path / "pair", [4, 9, 200])
    old, new = read_header(tiny_pair / "drafter.gguf"), read_header(folder / "drafter.gguf")
    assert {k: v for k, v in new.metadata.items() if k not in OURS} == old.metadata
    assert new.metadata["localdflash.short_vocabulary"] == [4, 9, 200]
    before, after = (gguf.GGUFReader(pair / "drafter.gguf").tensors for pair in (tiny_pair, folder))
    assert [t.name for t in after] == [*(t.name for t in before), "d2t", "output.weight"]
    for one, other in zip(before, after[: len(before)], strict=True):
        assert one.tensor_type == other.tensor_type
        np.testing.assert_array_equal(one.data, other.data)
    assert after[-2].data.tolist() == [4, 9, 200]


@pytest.mark.parametrize("variant", ["DSpark", "own embedding and head"])
def test_a_drafter_whose_head_cannot_be_shortened_is_refused(variant: str, tiny_pair: Path, tmp_path: Path) -> None:
    target = read_header(tiny_pair / "target.gguf")
    config = config_of(variant, len(target.require("tokenizer.ggml.tokens", list)))
    path = write_gguf(tmp_path / "drafter.gguf", config, random_weights(config), target.path)
    with pytest.raises(ModelError, match="can have a short vocabulary"):
        check(path, target)


def test_a_file_that_cannot_be_written_stays(tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shortened(tiny_pair, tmp_path / "pair", [1])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(_self: Path, _to: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    for name in ("drafter.gguf", "drafter.safetensors"):
        with pytest.raises(UsageError, match="cannot be written: No space left on device; check the folder"):
            shorten(folder / name, read_header(folder / "target.gguf"), [2])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
