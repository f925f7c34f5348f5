"""DFlash 2's selector: of a slot's best candidates the one that goes best with the token before it.

One program walks over the slots: what it reads of a slot are a few rows of the codebooks, and each slot waits for the
one before. Source: inco.ai/blog/dflash2.
"""

import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.sort_keys import index_of, is_nan, key_of


@Kernel
@triton.jit
def _select(values, tokens, wanted, predecessors, successors, draft, out, first, count, RANK, K: tl.constexpr,
            CANDIDATES: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (1,)."""
    c = tl.arange(0, CANDIDATES)
    r = tl.arange(0, WIDTH)
    wait(PDL)
    release(PDL)
    before = tl.load(draft)
    for slot in range(first, first + count):
        token = tl.load(tokens + slot * K + c, mask=c < K, other=0)
        row = tl.maximum(token, 0).to(tl.int64)  # -1 stands for a NaN
        goal = tl.load(wanted + slot * RANK + r, mask=r < RANK, other=0.0)
        goal *= tl.load(predecessors + before.to(tl.int64) * RANK + r, mask=r < RANK, other=0.0).to(tl.float32)
        codes = tl.load(successors + row[:, None] * RANK + r[None, :], mask=(r < RANK)[None, :], other=0.0)
        score = tl.load(values + slot * K + c, mask=c < K, other=0.0) + tl.sum(codes.to(tl.float32) * goal[None, :], 1)
        best = tl.max(tl.where(c < K, key_of(score, c), -0x8000000000000000), 0)
        chosen = tl.sum(tl.where(c == index_of(best), token, 0), 0)
        tl.store(out + slot, tl.where(is_nan(best), -1, chosen))
        before = tl.maximum(chosen, 0)


def select(
    values: Tensor,
    tokens: Tensor,
    wanted: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    draft: Tensor,
    out: Tensor,
    first: int,
    count: int,
) -> None:
    """Write out[slot], for `count` slots from `first` on, slot by slot behind the anchor draft[0].

    out[slot] is the candidate c with the largest values[slot, c] + (predecessors[token before] * wanted[slot]) .
    successors[c]; of equals the one that comes first, -1 where a score is NaN. values: float32 [16, k] and tokens:
    int32 [16, k], as `top_k` leaves them. wanted: float32 [16, rank]. Codebooks: float16 [V, rank]. draft and out:
    int32 [16].
    """
    k, rank = values.shape[1], wanted.shape[1]
    _select[(1,)](
        values, tokens, wanted, predecessors, successors, draft, out, first, count, rank, K=k,
        CANDIDATES=triton.next_power_of_2(k), WIDTH=triton.next_power_of_2(rank), num_warps=4,
        **every_launch(out.device),
    )  # fmt: skip


def select_reference(
    values: Tensor,
    tokens: Tensor,
    wanted: Tensor,
    predecessors: Tensor,
    successors: Tensor,
    draft: Tensor,
    out: Tensor,
    first: int,
    count: int,
) -> None:
    """Do what `select` does, in torch and float32; codebooks may be float32."""
    before = int(draft[0])
    for slot in range(first, first + count):
        goal = predecessors[before].float() * wanted[slot]
        scores = values[slot] + successors[tokens[slot].clamp(min=0).long()].float() @ goal
        chosen = int(tokens[slot, scores.argmax()])
        out[slot] = -1 if bool(scores.isnan().any()) else chosen
        before = max(chosen, 0)
