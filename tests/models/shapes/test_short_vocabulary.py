"""The short draft vocabulary against Counter, and its rows of a head against the dense weights."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from localdflash.backends.cuda.repack.gguf_planes import rows_of
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import Planes, pack_halves
from localdflash.models.shapes.short_vocabulary import count, load


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


def random_bits(dtype: torch.dtype, *shape: int) -> Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, dtype=torch.int64).to(dtype)


def halves(*shape: int) -> Tensor:
    pairs: Tensor = pack_halves(torch.randn(shape), torch.randn(shape))
    return pairs


def heads() -> dict[str, Planes]:
    """A head [300, 256] of every structure of planes."""
    torch.manual_seed(0)
    n = 384
    word = random_bits(torch.int16, 64, n)
    byte, quad = random_bits(torch.uint8, 64, n), random_bits(torch.int32, 2, n)
    options: dict[str, Any] = {
        "q4_k": {"high": None, "scaling": "byte4", "scale": quad, "supers": halves(1, n), "minimum": quad.flip(0)},
        "q5_k": {"high": byte, "scaling": "byte4", "scale": quad, "supers": halves(1, n), "minimum": quad.flip(0)},
        "q8_0": {"high": word.flip(0), "scaling": "half4", "scale": halves(2, 2, n), "zero": 128},
        "w4": {"high": None, "scaling": "block", "scale": torch.randn(2, n), "minimum": torch.randn(2, n)},
    }
    kinds = {name: Planes(300, 256, 32, word, **option) for name, option in options.items()}
    quads = random_bits(torch.int32, 4, n)
    kinds["q6_k"] = Planes(300, 256, 16, word, byte, "byte4", quads, halves(1, n), zero=32)
    return kinds


@pytest.mark.parametrize("name", heads())
@pytest.mark.parametrize("size", [1, 129])
def test_rows_of(name: str, size: int) -> None:
    planes = heads()[name]
    ids = torch.randperm(300)[:size].sort().values.to(torch.int32)
    short = rows_of(planes, ids)
    assert (short.n, short.k, short.padded_n) == (size, 256, 128 if size <= 128 else 256)
    assert torch.equal(short.dense, planes.dense[ids.long()])
    padding = rows_of(planes, ids)
    for tensor in (padding.base, padding.high, padding.scale, padding.supers, padding.minimum):
        assert tensor is None or not tensor[..., size:].any()
        assert tensor is None or tensor.is_contiguous()


# As a file


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
