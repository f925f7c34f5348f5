"""Sets every counter of a pair back to zero, before each sequence of launches.

Whoever arrives last at a counter sets it back itself, so that the next launch finds it at zero. After a launch that was
aborted, or that lost a ticket, it would not; every later step would then take a wrong program for the last one.
"""

import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait

AT_ONCE = 256  # counters that one store sets


@Kernel
@triton.jit
def _set_back(tiles, heads, last, found, slices, many_tiles, many_heads, many_slices, AT_ONCE: tl.constexpr,
              PDL: tl.constexpr):  # fmt: skip
    """Grid (1,). slices may be None."""
    i = tl.arange(0, AT_ONCE)
    wait(PDL)
    release(PDL)
    for first in range(0, many_tiles, AT_ONCE):
        tl.store(tiles + first + i, 0, mask=first + i < many_tiles)
    tl.store(heads + i, 0, mask=i < many_heads)
    tl.store(last, 0)
    tl.store(found + i, 0, mask=i < 2)
    if slices is not None:
        tl.store(slices + i, 0, mask=i < many_slices)


def set_back(tiles: Tensor, heads: Tensor, last: Tensor, found: Tensor, slices: Tensor | None = None) -> None:
    """Zero the counters of split products (`tiles`), attention (`heads`, at most 256), head (`last`), top_k (`slices`,
    16), all int32, and what lookup has found, int64 [2].
    """
    assert len(heads) <= AT_ONCE
    _set_back[(1,)](
        tiles, heads, last, found, slices, len(tiles), len(heads), 0 if slices is None else len(slices),
        AT_ONCE=AT_ONCE, num_warps=1, **every_launch(tiles.device),
    )  # fmt: skip


def set_back_reference(tiles: Tensor, heads: Tensor, last: Tensor, found: Tensor, slices: Tensor | None = None) -> None:
    """Do what `set_back` does, in torch."""
    for counters in (tiles, heads, last, found, slices):
        if counters is not None:
            counters.zero_()
