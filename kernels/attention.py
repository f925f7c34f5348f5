"""Attention of a block of 16 rows over the key/value cache, at batch 1 (flash decoding, split over the context).

Row t sits in slot start + t of the cache and, but for trees, at that position. What it sees:

* "chain": slots up to its own. A causal layer of a drafter is a chain too.
* "block": every slot up to the last of the block. A bidirectional layer of a drafter.
* "tree": the context (slots before start) and, within the block, slot start + j where bit j of its `ancestors` is set.

With a window W a row of a chain sees positions above start + t - W only, one of a block those less than W away.

The context is cut into chunks at absolute positions, one program per chunk and key/value head, which serves all rows
and query heads that share the head. A row therefore sums in one order, however many rows are live and programs are
launched: a verified row is bit for bit what plain decoding computes there.
"""

from typing import Literal

import torch
from torch import Tensor

from localdflash.kernels.cache import Cache, decode

Mask = Literal["chain", "block", "tree"]
ROWS = 16
CHUNK = 256  # slots of a program: the order of summation, so the same for every launch
BUCKETS = (8, 32, 128, 512)  # numbers of chunks that a launch may cover


class Scratch:
    """What the chunks leave for the merge, allocated once for the longest context; shared by layers run in turn."""


def attention_reference(
    q: Tensor,
    cache: Cache,
    start: Tensor,
    out: Tensor,
    sums: Tensor,
    scratch: Scratch | None,
    mask: Mask,
    block: int = ROWS,
    ancestors: Tensor | None = None,
    window: int = 0,
    splits: int = BUCKETS[-1],
) -> None:
    """The definition in plain torch, a row at a time so that no row depends on another. Arguments of `attention`."""
    begin, (rows, heads, head_dim) = int(start), q.shape
    for t in range(block if mask == "block" else rows):
        slots = _visible(t, begin, mask, block, ancestors, window)
        keys = decode(cache.k[slots], None if cache.k_scale is None else cache.k_scale[slots])
        values = decode(cache.v[slots], None if cache.v_scale is None else cache.v_scale[slots])
        grouped = q[t].float().view(keys.shape[1], heads // keys.shape[1], head_dim)  # [HKV, G, D]
        scores = grouped @ keys.permute(1, 2, 0) * head_dim**-0.5  # [HKV, G, n]
        out[t] = (scores.softmax(-1) @ values.transpose(0, 1)).flatten().to(out.dtype)
    sums.copy_(out.float().unflatten(1, (-1, 32)).sum(-1).t())


def _visible(t: int, begin: int, mask: Mask, block: int, ancestors: Tensor | None, window: int) -> slice | Tensor:
    """The slots that row t sees: a range, or the list that a tree needs."""
    if mask == "tree":
        assert ancestors is not None
        seen = [begin + j for j in range(ROWS) if int(ancestors[t]) >> j & 1]
        return torch.tensor([*range(begin), *seen], device=ancestors.device)
    position, last = begin + t, begin + (t if mask == "chain" else block - 1)
    if not window:
        return slice(0, last + 1)
    return slice(max(0, position - window + 1), min(last, position + window - 1) + 1)
