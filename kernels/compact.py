"""Compaction: after a tree is verified, the keys and values of the accepted path move to where a chain has them.

The path's rows lie in slots start + rows[0], start + rows[1], ...; they move to start, start + 1, ... in all layers at
once. A path only goes up (rows[j] >= j), so that everything is read before anything is written, in place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cache import Cache
from localdflash.kernels.launch import pdl, release, wait

ROWS = 16
WORDS = 256  # columns of a program


@triton.jit
def _move(base_ptr, layer, slots, start, rows, count, width, WORDS: tl.constexpr):
    """Move rows of one tensor, int32 [layers, slots, width]: the columns of this program."""
    column = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    j = tl.arange(0, 16)
    moved = ((j < count) & (rows != j))[:, None] & (column < width)[None, :]
    first = base_ptr + (layer * slots + start).to(tl.int64) * width + column[None, :]
    words = tl.load(first + rows[:, None] * width, mask=moved)
    tl.debug_barrier()  # a row may be the place of another: all threads have read before one writes
    tl.store(first + j[:, None] * width, words, mask=moved)


@triton.jit
def compact_kernel(
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, start_ptr, rows_ptr, count_ptr, slots,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, SCALED: tl.constexpr, WORDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """WORDS columns of one layer. Grid (layers, WIDTH / WORDS); a slot of k or v is WIDTH words, of a scale HEADS."""
    layer = tl.program_id(0)
    wait(PDL)
    release(PDL)
    start, count = tl.load(start_ptr), tl.load(count_ptr)
    rows = tl.load(rows_ptr + tl.arange(0, 16))
    _move(k_ptr, layer, slots, start, rows, count, WIDTH, WORDS)
    _move(v_ptr, layer, slots, start, rows, count, WIDTH, WORDS)
    if SCALED:
        _move(k_scale_ptr, layer, slots, start, rows, count, HEADS, WORDS)
        _move(v_scale_ptr, layer, slots, start, rows, count, HEADS, WORDS)


def compact(cache: Cache, start: Tensor, rows: Tensor, count: Tensor) -> None:
    """Move row rows[j] of the block to row j, for j < count, in a stack of layers [layers, slots, heads, D].

    start int32 [1], the first slot of the block; rows int32 [16], ascending with rows[j] >= j, its tail ignored; count
    int32 [1], 0 to 16.
    """
    k, v, k_scale, v_scale = (None if x is None else x.view(torch.int32) for x in _tensors(cache))
    assert k is not None
    layers, slots, heads, words = k.shape
    compact_kernel[(layers, triton.cdiv(heads * words, WORDS))](
        k, v, k_scale, v_scale, start, rows, count, slots, WIDTH=heads * words, HEADS=heads, WORDS=WORDS,
        SCALED=k_scale is not None, num_warps=4, **pdl(k.device),
    )  # fmt: skip


def compact_reference(cache: Cache, start: Tensor, rows: Tensor, count: Tensor) -> None:
    """The same in torch."""
    n, begin = int(count), int(start)
    for tensor in _tensors(cache):
        if tensor is not None:
            tensor[:, begin : begin + n] = tensor[:, begin + rows[:n].long()]


def _tensors(cache: Cache) -> tuple[Tensor | None, ...]:
    return cache.k, cache.v, cache.k_scale, cache.v_scale
