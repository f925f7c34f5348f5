"""The taps of the next 16 tokens that the drafter has not seen, gathered from the ring where the target left them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait

ROWS = 16
GROUP = 32  # columns under one entry of `sums`
CHUNK = 1024  # columns of a row that one program copies


@Kernel
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
    _gather_taps[grid](ring, start, a, sums, size, width, stride, CHUNK=CHUNK, num_warps=4, **every_launch(a.device))


def gather_taps_reference(ring: Tensor, start: Tensor, a: Tensor, sums: Tensor) -> None:
    """Do what `gather_taps` does, in torch; any float dtype."""
    size, width = ring.shape
    rows = (start.long() + torch.arange(ROWS, device=a.device)) % size
    a.zero_()
    a[:, :width] = ring[rows]
    sums.copy_(a.float().view(ROWS, -1, GROUP).sum(-1).t())
