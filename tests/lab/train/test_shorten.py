"""Shortening of a drafter's vocabulary: changed files, unmodified parts, refused input."""

from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from localdflash.base.errors import ModelError, UsageError
from localdflash.lab.train.short_vocabulary import count, load
from localdflash.lab.train.shorten import check, shorten
from localdflash.models.weights.gguf import read_header
from tests.support.random_drafters import config_of, random_weights, vocabulary_of, write_gguf
from tests.support.shortened import shortened

OURS = {"localdflash.short_vocabulary"}


def test_shortening_changes_nothing_else_in_a_gguf(tiny_pair: Path, tmp_path: Path) -> None:
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
    config = config_of(variant, vocabulary_of(target.path))
    path = write_gguf(tmp_path / "drafter.gguf", config, random_weights(config), target.path)
    with pytest.raises(ModelError, match="a short vocabulary needs"):
        check(path, target)


def test_a_file_that_cannot_be_written_stays_unmodified(
    tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shortened(tiny_pair, tmp_path / "pair", [1])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(_self: Path, _to: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    for name in ("drafter.gguf", "drafter.safetensors"):
        with pytest.raises(UsageError, match="cannot be written: No space left on device; check the folder"):
            shorten(folder / name, read_header(folder / "target.gguf"), [2])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@given(
    sequences=st.lists(st.lists(st.integers(0, 29), max_size=20), max_size=5),
    size=st.integers(3, 30),
    always=st.lists(st.integers(0, 29), max_size=3),
)
def test_count_chooses_the_most_frequent_tokens(sequences: list[list[int]], size: int, always: list[int]) -> None:
    counter = Counter(token for sequence in sequences for token in sequence)
    order = sorted(range(30), key=lambda token: (token not in always, -counter[token], token))
    short = count(iter(sequences), 30, size, always)
    assert short.ids.dtype == torch.int32
    assert short.ids.tolist() == sorted(order[:size])
    inside = sum(counter[token] for token in order[:size])
    assert short.coverage == (inside / counter.total() if counter else 1.0)
    assert short.counted == counter.total()


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"ids": torch.tensor([2, 1]).int()}, "the ids do not ascend; run"),
        ({"ids": torch.tensor([1, 1]).int()}, "the ids do not ascend"),
        ({"ids": torch.tensor([1, 10]).int()}, "ids 1 to 10 are not all below 10"),
        ({"ids": torch.tensor([1, 2])}, "expected one tensor, ids"),
        ({"tokens": torch.tensor([1]).int()}, "expected one tensor, ids"),
        ({"ids": torch.tensor([1]).int(), "more": torch.ones(1)}, "expected one tensor, ids"),
    ],
)
def test_malformed_short_vocabularies_are_refused(tensors: dict[str, Tensor], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "list.safetensors"
    save_file(tensors, path)
    with pytest.raises(ModelError, match=reason) as caught:
        load(path, 10)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
