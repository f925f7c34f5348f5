"""DFlash 2's selector: among a draft position's (slot's) k best tokens choose the one that best follows the previous.

`top_k`: a program finds the best k tokens of one slice of a row of logits; the last program of a row merges the slices.
`select`: one program walks over the slots in sequence and reads a few rows of the codebooks (predecessors, successors).
Source: inco.ai/blog/dflash2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.base.errors import UsageError
from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.sort_keys import index_of, is_nan, key_of, value_of

ROWS = 16
MAX_K = 16
SLICE = 2048  # logits that one program sorts


class TopKScratch:
    """Best sort keys of every slice of 16 rows of up to `n` logits; a row's counter of finished slices, 0 at rest."""

    def __init__(self, device: torch.device, n: int) -> None:
        self.keys = torch.zeros(ROWS, triton.cdiv(n, SLICE), MAX_K, dtype=torch.int64, device=device)
        self.counters = torch.zeros(ROWS, dtype=torch.int32, device=device)


@Kernel
@triton.jit
def _top_k(logits, values, tokens, ids, part_keys, counters, n, stride, slices, K: tl.constexpr,
           SLICE: tl.constexpr, MERGE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (16 rows, slices). ids may be None."""
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
    tl.debug_barrier()  # all threads must have stored before one takes the ticket
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
    """Write the k largest logits of each row, in falling order, and their indices (or the `ids` at these indices).

    Ties are ordered by index; NaN comes first, with token -1. logits: float32 [16, n]. values:
    float32 [16, k], tokens: int32 [16, k], k <= 16 and k <= n. ids: int32 [n]. UsageError for another k.
    """
    n, k = logits.shape[1], values.shape[1]
    _check_k(n, k)
    slices = triton.cdiv(n, SLICE)
    _top_k[(ROWS, slices)](
        logits, values, tokens, ids, scratch.keys, scratch.counters, n, logits.stride(0), slices, K=k, SLICE=SLICE,
        MERGE=triton.next_power_of_2(slices * k), num_warps=4, **every_launch(logits.device),
    )  # fmt: skip


def top_k_reference(
    logits: Tensor, values: Tensor, tokens: Tensor, scratch: TopKScratch | None, ids: Tensor | None = None
) -> None:
    """Do what `top_k` does, in torch; `scratch` is not used."""
    _check_k(logits.shape[1], values.shape[1])
    order = logits.argsort(dim=-1, descending=True, stable=True)[:, : values.shape[1]]
    best = logits.gather(1, order)
    values.copy_(best)
    tokens.copy_(torch.where(best.isnan(), -1, order if ids is None else ids[order]))


def _check_k(n: int, k: int) -> None:
    if not 1 <= k <= min(MAX_K, n):
        raise UsageError(f"top_k: {k} of {n} tokens requested (expected 1 to {min(MAX_K, n)})")


@Kernel
@triton.jit
def _select(values, tokens, selectors, predecessors, successors, draft, out, first, count, RANK, K: tl.constexpr,
            CANDIDATES: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (1,)."""
    c = tl.arange(0, CANDIDATES)
    r = tl.arange(0, WIDTH)
    wait(PDL)
    release(PDL)
    previous = tl.load(draft)
    for slot in range(first, first + count):
        token = tl.load(tokens + slot * K + c, mask=c < K, other=0)
        row = tl.maximum(token, 0).to(tl.int64)  # -1 stands for a NaN
        goal = tl.load(selectors + slot * RANK + r, mask=r < RANK, other=0.0)
        goal *= tl.load(predecessors + previous.to(tl.int64) * RANK + r, mask=r < RANK, other=0.0).to(tl.float32)
        codes = tl.load(successors + row[:, None] * RANK + r[None, :], mask=(r < RANK)[None, :], other=0.0)
        score = tl.load(values + slot * K + c, mask=c < K, other=0.0) + tl.sum(codes.to(tl.float32) * goal[None, :], 1)
        best = tl.max(tl.where(c < K, key_of(score, c), -0x8000000000000000), 0)
        chosen = tl.sum(tl.where(c == index_of(best), token, 0), 0)
        tl.store(out + slot, tl.where(is_nan(best), -1, chosen))
        previous = tl.maximum(chosen, 0)


def select(
    values: Tensor,
    tokens: Tensor,
    selectors: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    draft: Tensor,
    out: Tensor,
    first: int,
    count: int,
) -> None:
    """Write out[slot] for `count` slots from `first` on, in sequence, starting from the anchor draft[0].

    out[slot] is the candidate c with the largest values[slot, c] + (predecessors[previous token] *
    selectors[slot]) . successors[c]: the first of ties, or -1 if a score is NaN. values: float32 [16, k] and tokens:
    int32 [16, k], the results of `top_k`. selectors: float32 [16, rank]. Codebooks: float16 [V, rank]. draft and out:
    int32 [16].
    """
    k, rank = values.shape[1], selectors.shape[1]
    _select[(1,)](
        values, tokens, selectors, predecessors, successors, draft, out, first, count, rank, K=k,
        CANDIDATES=triton.next_power_of_2(k), WIDTH=triton.next_power_of_2(rank), num_warps=4,
        **every_launch(out.device),
    )  # fmt: skip


def select_reference(
    values: Tensor,
    tokens: Tensor,
    selectors: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    draft: Tensor,
    out: Tensor,
    first: int,
    count: int,
) -> None:
    """Do what `select` does, in torch and float32; codebooks may be float32."""
    previous = int(draft[0])
    for slot in range(first, first + count):
        goal = predecessors[previous].float() * selectors[slot]
        scores = values[slot] + successors[tokens[slot].clamp(min=0).long()].float() @ goal
        chosen = int(tokens[slot, scores.argmax()])
        out[slot] = -1 if bool(scores.isnan().any()) else chosen
        previous = max(chosen, 0)
