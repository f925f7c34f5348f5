"""The reference of prompt attention; see test_cases for the definition of both."""

import torch

from localdflash.kernels.cuda import prompt_attention
from localdflash.kernels.cuda.kv_cache import Cache


def test_int8_cache_is_read_completely() -> None:
    """The cache is read in pieces, of which the last is shorter."""
    slots = 2 * prompt_attention.PIECE + 5
    cache = Cache.empty(1, slots, 2, 64, torch.int8, torch.device("cpu")).layer(0)
    cache.write(torch.arange(slots), *torch.randn(2, slots, 2, 64))
    for codes, scale, expected in zip((cache.k, cache.v), (cache.k_scale, cache.v_scale), cache.read(), strict=True):
        assert torch.equal(prompt_attention._floats(codes, scale, torch.float16), expected.half())
