"""The k best tokens of each of 16 rows of logits, for candidate selectors (DFlash 2).

A program sorts the best k out of one slice of a row; the last one of a row merges the slices.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.base.errors import UsageError
from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.sort_keys import index_of, is_nan, key_of, value_of

ROWS = 16
LARGEST_K = 16
SLICE = 2048  # logits that one program sorts


class TopKScratch:
    """The best keys of every slice of a row of at most `n` logits, and the slices that arrived. Counters are zero."""

    def __init__(self, device: torch.device, n: int) -> None:
        self.keys = torch.zeros(ROWS, triton.cdiv(n, SLICE), LARGEST_K, dtype=torch.int64, device=device)
        self.counters = torch.zeros(ROWS, dtype=torch.int32, device=device)


@Kernel
@triton.jit
def _top_k(logits, values, tokens, ids, part_keys, counters, n, stride, slices, K: tl.constexpr,
           SLICE: tl.constexpr, MERGE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (16, slices). ids may be None."""
    row = tl.program_id(0)
    at = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    part_keys += row * slices * K
    wait(PDL)
    release(PDL)
    value = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < n, other=0.0)
    keys = tl.where(at < n, key_of(value, at), -0x8000000000000000)
    for rank in range(K):
        best = tl.max(keys, 0)
        tl.store(part_keys + tl.program_id(1) * K + rank, best)
        keys = tl.where(keys == best, -0x8000000000000000, keys)
    tl.debug_barrier()  # all threads have stored before one of them takes the ticket
    ticket = tl.atomic_add(counters + row, 1, sem="acq_rel", scope="gpu")
    if ticket == slices - 1:
        i = tl.arange(0, MERGE)
        merged = tl.load(part_keys + i, mask=i < slices * K, other=-0x8000000000000000, cache_modifier=".cg")
        for rank in range(K):
            best = tl.max(merged, 0)
            merged = tl.where(merged == best, -0x8000000000000000, merged)
            token = index_of(best)
            if ids is not None:
                token = tl.load(ids + token)
            tl.store(values + row * K + rank, value_of(best))
            tl.store(tokens + row * K + rank, tl.where(is_nan(best), -1, token))
        tl.store(counters + row, 0)


def top_k(logits: Tensor, values: Tensor, tokens: Tensor, scratch: TopKScratch, ids: Tensor | None = None) -> None:
    """Write the k largest logits of each row, in falling order, and their indices (or `ids` of them).

    Of equal logits the lower index comes first; NaN comes before all, with token -1. logits: float32 [16, n]. values:
    float32 [16, k], tokens: int32 [16, k], k <= 16 and k <= n. ids: int32 [n]. UsageError for another k.
    """
    n, k = logits.shape[1], values.shape[1]
    _check(n, k)
    slices = triton.cdiv(n, SLICE)
    _top_k[(ROWS, slices)](
        logits, values, tokens, ids, scratch.keys, scratch.counters, n, logits.stride(0), slices, K=k, SLICE=SLICE,
        MERGE=triton.next_power_of_2(slices * k), num_warps=4, **every_launch(logits.device),
    )  # fmt: skip


def top_k_reference(
    logits: Tensor, values: Tensor, tokens: Tensor, scratch: TopKScratch | None, ids: Tensor | None = None
) -> None:
    """Do what `top_k` does, in torch; `scratch` is not used."""
    _check(logits.shape[1], values.shape[1])
    order = logits.argsort(dim=-1, descending=True, stable=True)[:, : values.shape[1]]
    best = logits.gather(1, order)
    values.copy_(best)
    tokens.copy_(torch.where(best.isnan(), -1, order if ids is None else ids[order]))


def _check(n: int, k: int) -> None:
    if not 1 <= k <= min(LARGEST_K, n):
        raise UsageError(f"top_k gives 1 to {min(LARGEST_K, n)} tokens of {n}, not {k}; ask for fewer")
