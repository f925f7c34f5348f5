"""The start of a step: the masked block that the drafter fills, and the taps of the tokens that it has not seen.

Device state (int32 [8]): CONTEXT = tokens in the target's cache, the anchor is token number CONTEXT; DRAFTER = tokens
in the drafter's cache. A step gives the drafter the 16 taps from DRAFTER on (`gather_taps`), then asks for a block
(`begin_block`, which counts those taps as seen, as far as they exist). A verify adds at most 16: one step catches up.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.launch import pdl, release, wait

ROWS = 16
CONTEXT, DRAFTER = 0, 1  # slots of the device state
GROUP = 32  # columns under one entry of `sums`
CHUNK = 1024  # columns of a row that one program copies


@triton.jit
def _begin_block(tokens, state, draft, mask_id, CONTEXT: tl.constexpr, DRAFTER: tl.constexpr, PDL: tl.constexpr):
    """Grid (1,)."""
    m = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    context = tl.load(state + CONTEXT)
    seen = tl.load(state + DRAFTER)
    anchor = tl.load(tokens + context)
    tl.store(draft + m, tl.where(m == 0, anchor, mask_id))
    tl.store(state + DRAFTER, tl.minimum(seen + 16, context))


def begin_block(tokens: Tensor, state: Tensor, draft: Tensor, mask_id: int) -> None:
    """Write the drafter's input, the anchor and 15 mask ids, into draft; DRAFTER = min(DRAFTER + 16, CONTEXT).

    tokens: int32 [capacity + 16], committed ids by position. state: int32 [8]. draft: int32 [16].
    """
    _begin_block[(1,)](
        tokens, state, draft, mask_id, CONTEXT=CONTEXT, DRAFTER=DRAFTER, num_warps=1, **pdl(draft.device)
    )


def begin_block_reference(tokens: Tensor, state: Tensor, draft: Tensor, mask_id: int) -> None:
    """Do what `begin_block` does, in torch."""
    draft.fill_(mask_id)
    draft[:1] = tokens.index_select(0, state[CONTEXT : CONTEXT + 1])
    state[DRAFTER] = torch.minimum(state[DRAFTER] + ROWS, state[CONTEXT])


@triton.jit
def _gather_taps(ring, start, a, sums, RING, width, stride, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """Grid (16 rows, chunks of a row)."""
    m = tl.program_id(0)
    group = tl.program_id(1) * (CHUNK // 32) + tl.arange(0, CHUNK // 32)
    k = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    wait(PDL)
    release(PDL)
    slot = (tl.load(start) + m) % RING
    taps = tl.load(ring + slot.to(tl.int64) * width + k, mask=k < width, other=0.0)
    tl.store(a + m * stride + k, taps, mask=k < stride)
    tl.store(sums + group * 16 + m, tl.sum(taps.to(tl.float32), 1), mask=group * 32 < stride)


def gather_taps(ring: Tensor, start: Tensor, a: Tensor, sums: Tensor) -> None:
    """Copy a[m] = ring[(start + m) % RING] for all 16 rows, and the sums over groups of 32 columns.

    ring: float16 [RING, taps * H] (the hidden states / 16). start: int32 [1]. a: float16 [16, K >= taps * H], zero from
    taps * H on. sums: float32 [K / 32, 16].
    """
    (size, width), stride = ring.shape, a.shape[1]
    grid = (ROWS, triton.cdiv(stride, CHUNK))
    _gather_taps[grid](ring, start, a, sums, size, width, stride, CHUNK=CHUNK, num_warps=4, **pdl(a.device))


def gather_taps_reference(ring: Tensor, start: Tensor, a: Tensor, sums: Tensor) -> None:
    """Do what `gather_taps` does, in torch; any float dtype."""
    size, width = ring.shape
    rows = (start.long() + torch.arange(ROWS, device=a.device)) % size
    a.zero_()
    a[:, :width] = ring[rows]
    sums.copy_(a.float().view(ROWS, -1, GROUP).sum(-1).t())
