"""Compaction in the interpreter and in torch, against a loop over a copy."""

from collections.abc import Callable

import pytest
import torch

from localdflash.kernels.cache import Cache
from localdflash.kernels.compact import compact, compact_reference

PATHS = [[], [0], [0, 1, 2], [0, 2, 3], [0, 1, 5, 6, 15], [3, 4, 5, 6, 7, 8], list(range(16)), [0, 3, 9]]


def filled(dtype: torch.dtype, head_dim: int) -> Cache:
    cache = Cache.empty(3, 40, 5, head_dim, dtype, torch.device("cpu"))
    for layer in range(3):
        k, v = torch.randn(2, 40, 5, head_dim)
        cache.layer(layer).write(torch.arange(40), k, v)
    return cache


@pytest.mark.parametrize("op", [compact, compact_reference])
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [(torch.float16, 64), (torch.float16, 128), (torch.int8, 64), (torch.float8_e4m3fn, 64), (torch.float32, 64)],
)
def test_compact(op: Callable[..., None], dtype: torch.dtype, head_dim: int) -> None:
    torch.manual_seed(0)
    for start, path in zip((0, 7, 24, 24, 24, 7, 3, 24), PATHS, strict=True):
        cache = filled(dtype, head_dim)
        tensors = [x for x in (cache.k, cache.v, cache.k_scale, cache.v_scale) if x is not None]
        wanted = [x.clone() for x in tensors]
        for want, now in zip(wanted, tensors, strict=True):
            for j, row in enumerate(path):
                want[:, start + j] = now[:, start + row]
        rows = torch.tensor(path + [99] * (16 - len(path)), dtype=torch.int32)
        op(cache, torch.tensor([start], dtype=torch.int32), rows, torch.tensor([len(path)], dtype=torch.int32))
        for want, now in zip(wanted, tensors, strict=True):
            assert torch.equal(want.view(torch.uint8), now.view(torch.uint8))
