"""The short draft vocabulary: its count against Counter, and files of it that are refused."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.lab.train.short_vocabulary import count, load


@given(
    sequences=st.lists(st.lists(st.integers(0, 29), max_size=20), max_size=5),
    size=st.integers(3, 30),
    always=st.lists(st.integers(0, 29), max_size=3),
)
def test_count(sequences: list[list[int]], size: int, always: list[int]) -> None:
    counter = Counter(token for sequence in sequences for token in sequence)
    order = sorted(range(30), key=lambda token: (token not in always, -counter[token], token))
    short = count(iter(sequences), 30, size, always)
    assert short.ids.dtype == torch.int32
    assert short.ids.tolist() == sorted(order[:size])
    inside = sum(counter[token] for token in order[:size])
    assert short.coverage == (inside / counter.total() if counter else 1.0)
    assert short.counted == counter.total()


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"ids": torch.tensor([2, 1]).int()}, "its ids do not ascend; make it again"),
        ({"ids": torch.tensor([1, 1]).int()}, "its ids do not ascend"),
        ({"ids": torch.tensor([1, 10]).int()}, "its ids 1 to 10 are not all below 10"),
        ({"ids": torch.tensor([1, 2])}, "expected one tensor, ids"),
        ({"tokens": torch.tensor([1]).int()}, "expected one tensor, ids"),
        ({"ids": torch.tensor([1]).int(), "more": torch.ones(1)}, "expected one tensor, ids"),
    ],
)
def test_lists_that_are_refused(tensors: dict[str, Tensor], said: str, tmp_path: Path) -> None:
    path = tmp_path / "list.safetensors"
    save_file(tensors, path)
    with pytest.raises(ModelError, match=said) as caught:
        load(path, 10)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
