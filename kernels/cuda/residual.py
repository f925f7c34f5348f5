"""The residual stream: x += a @ W^T with the inputs of the next norm and the drafter's taps, in one launch.

A tile is 128 columns, written by one program only, the last to arrive at it. A row tile is 16 rows. Sums of activations
over 32 columns are for weights with minimums (zero points), whose product subtracts minimum * sum. Taps (hidden-state
features of the drafter) are stored as x / 16 in float16: residual streams of some models exceed its range, and a power
of two is exact. The drafter's first matrix is multiplied by 16 when it is loaded. `gather_taps` collects the taps of
16 tokens as that matrix's input.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import (
    accumulate,
    first_tile,
    grid_rows,
    plan,
    plane_constants,
    pointers,
    product_reference,
)
from localdflash.kernels.cuda.norm import TILE, Norm, rstd_reference, rstds, square
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.split_k import SplitWorkspace, arrive, gather

TAP_SCALE = 1 / 16
GROUP = 32  # columns per entry of `sums`
ROWS = 16
COPY_COLUMNS = 1024  # columns of a row that one program of `gather_taps` copies


@dataclass(frozen=True)
class Tap:
    """Destination of hidden states for the drafter: row (start + m) % RING of a ring buffer, from `column` on."""

    ring: Tensor  # float16 [RING, taps * H]
    column: int
    start: Tensor  # int32 [1]


@triton.jit
def store_sums(a, sums_ptr, group, groups, BN: tl.constexpr):
    """Store the sums of `a`, float32 [16, BN], over 32 columns each in sums [groups, 16], from row `group` on."""
    g = group + tl.arange(0, BN // 32)
    totals = tl.sum(tl.reshape(a, (16, BN // 32, 32)), 2)  # [16, BN / 32]
    tl.store(sums_ptr + g[None, :] * 16 + tl.arange(0, 16)[:, None], totals, mask=g[None, :] < groups)


@triton.jit
def store_norm_inputs(x, tile, gain, factor, out_ptr, sums_ptr, squares_ptr, H, width, BN: tl.constexpr):
    """Store the next norm's inputs for a tile of the residual stream, float32 [16, BN]; see `residual`.

    gain float32 [BN] belongs to the tile's columns, factor float32 [16] to its rows.
    """
    m = tl.arange(0, 16)
    n = tile * BN + tl.arange(0, BN)
    inside = n[None, :] < H
    x = tl.where(inside, x, 0.0)
    tl.store(squares_ptr + tile * 16 + m, tl.sum(square(x), 1))
    rounded = (x * gain[None, :] * factor[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m[:, None] * width + n[None, :], rounded, mask=inside)
    store_sums(rounded.to(tl.float32), sums_ptr, tile * (BN // 32), width // 32, BN)


@Kernel
@triton.jit
def _residual(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, x_ptr, gain_ptr,
              previous_squares_ptr, bias_ptr, out_ptr, sums_out_ptr, squares_ptr, ring_ptr, start_ptr, partials_ptr,
              counters_ptr, K, N, H, size, eps, width, ring_rows, ring_width, column, P: tl.constexpr,
              ADD: tl.constexpr, BIAS: tl.constexpr, TAP: tl.constexpr, TAP_SCALE: tl.constexpr, R: tl.constexpr,
              HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
              HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
              TILES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles, SPLIT_K, `grid_rows`)."""
    tile, split, rows = tl.program_id(0), tl.program_id(1), first_tile(SCALING)
    m = 16 * rows + tl.arange(0, 16)
    n = tile * BN + tl.arange(0, BN)
    inside = n[None, :] < H
    gain = tl.load(gain_ptr + n, mask=n < H, other=0.0)
    ptrs = x_ptr + m[:, None] * H + n[None, :]
    wait(PDL)
    factors = rstds(previous_squares_ptr + rows * (P * 16), P, size, eps, TILES)
    if ADD:
        last = ptrs + (TILES - 1) * 16 * H  # a single row tile is loaded twice, so that the tuple always has two
        old_x = tl.load(ptrs, mask=inside, other=0.0), tl.load(last, mask=inside, other=0.0)
    accs = accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * BN, split,
                      0, R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, SPLIT_K, STAGES, ASM, TILES)  # fmt: skip
    release(PDL)
    if arrive(accs, partials_ptr, counters_ptr, tile, split, BN, SPLIT_K, TILES):
        for t in tl.static_range(TILES):
            x = gather(accs[t], partials_ptr, counters_ptr, tile, BN, SPLIT_K, t, TILES)
            if BIAS:
                x += tl.load(bias_ptr + n, mask=n < H, other=0.0)[None, :]
            if ADD:
                x += old_x[t]
            tl.store(ptrs + t * 16 * H, x, mask=inside)
            if TAP:
                row = (tl.load(start_ptr) + 16 * t + m) % ring_rows
                tapped = (x * TAP_SCALE).to(ring_ptr.dtype.element_ty)
                tl.store(ring_ptr + row[:, None].to(tl.int64) * ring_width + column + n[None, :], tapped, mask=inside)
            # A row tile has width / 32 groups of sums for 16 rows: width / 2 numbers.
            at = rows + t
            store_norm_inputs(x, tile, gain, factors[t], out_ptr + at * (16 * width), sums_out_ptr + at * (width // 2),
                    squares_ptr + at * (tl.num_programs(0) * 16), H, width, BN)  # fmt: skip


def residual(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    x: Tensor,
    gain: Tensor,
    previous_norm: Norm | None,
    a_out: Tensor,
    sums_out: Tensor,
    squares_out: Tensor,
    workspace: SplitWorkspace,
    add: bool = True,
    tap: Tap | None = None,
    bias: Tensor | None = None,
) -> None:
    """Set x to a @ W^T + bias, plus x with `add`, and a_out to x * gain * rstd(previous_norm.squares).

    That rstd keeps a_out in float16's range; the consumer divides by it. Without a previous norm it is 1.

    a float16 [16, padded_k] with its sums [padded_k / 32, 16]; x float32 [16, H]; gain and bias float32 [H]; a_out
    float16 [16, padded_k of its consumer] and sums_out float32 [a_out columns / 32, 16], sums of the rounded a_out.
    Both stay zero past column H; squares_out float32 [H / 128 rounded up, 16]: sums of x^2 over tiles.
    squares_out must not be previous_norm.squares, nor a_out be a: tiles are written while others still read.

    One call may compute two row tiles, or any number for a finished product, bit-identical to separate calls. All but
    gain and bias are then [T, ...], and each tile's taps begin 16 rows after the taps of the tile before.
    """
    hidden = x.shape[-1]
    cut, (programs, tiles) = plan(planes.n, planes.padded_k, a.device, BN=TILE), grid_rows(a, planes)
    squares, parts, size, eps = sums, 0, 1, 0.0  # another tensor stands in for an absent one, and is not read
    if previous_norm is not None:
        squares, parts = previous_norm.squares, previous_norm.parts
        size, eps = previous_norm.size, previous_norm.eps
    ring, column, start = (a_out.flatten(0, -2), 0, sums) if tap is None else (tap.ring, tap.column, tap.start)
    _residual[(cut.tiles, cut.SPLIT_K, programs)](
        a, sums, *pointers(planes), x, gain, squares, sums if bias is None else bias, a_out, sums_out, squares_out,
        ring, start, workspace.partials, workspace.counters, planes.padded_k, planes.padded_n, hidden, size, eps,
        a_out.shape[-1], *ring.shape, column, P=parts, ADD=add, BIAS=bias is not None, TAP=tap is not None,
        TAP_SCALE=TAP_SCALE, **plane_constants(planes), BN=cut.BN, SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES,
        TILES=tiles, num_warps=cut.num_warps, **every_launch(a.device),
    )  # fmt: skip


def residual_reference(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    x: Tensor,
    gain: Tensor,
    previous_norm: Norm | None,
    a_out: Tensor,
    sums_out: Tensor,
    squares_out: Tensor,
    workspace: SplitWorkspace | None,
    add: bool = True,
    tap: Tap | None = None,
    bias: Tensor | None = None,
) -> None:
    """Do what `residual` does, in torch and float32; a, a_out and the ring may be float32."""
    hidden = x.shape[-1]
    product = product_reference(a, planes)
    if bias is not None:
        product = product + bias
    x.copy_(x + product if add else product)
    store_norm_inputs_reference(x, gain, previous_norm, a_out, sums_out, squares_out)
    if tap is not None:
        tapped = (x * TAP_SCALE).to(tap.ring.dtype).view(-1, hidden)
        rows = (tap.start + torch.arange(len(tapped), device=x.device)) % tap.ring.shape[0]
        tap.ring[rows, tap.column : tap.column + hidden] = tapped


def store_norm_inputs_reference(
    x: Tensor, gain: Tensor, previous_norm: Norm | None, a_out: Tensor, sums_out: Tensor, squares_out: Tensor
) -> None:
    """Store the next norm's inputs for the residual stream x [..., 16, H]; see `residual`."""
    hidden = x.shape[-1]
    scaled = x * gain
    if previous_norm is not None:
        scaled = scaled * rstd_reference(previous_norm.squares, previous_norm.size, previous_norm.eps).unsqueeze(-1)
    a_out[..., :hidden] = scaled.to(a_out.dtype)
    sums_out.copy_(group_sums_reference(a_out))
    squares_out.copy_(F.pad(x.square(), (0, -hidden % TILE)).unflatten(-1, (-1, TILE)).sum(-1).mT)


def group_sums_reference(a: Tensor) -> Tensor:
    """Return the sums of a [..., 16, K] over groups of 32 columns, float32 [..., K / 32, 16]."""
    return a.float().unflatten(-1, (-1, GROUP)).sum(-1).mT


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
    grid = (ROWS, triton.cdiv(stride, COPY_COLUMNS))
    options = every_launch(a.device)
    _gather_taps[grid](ring, start, a, sums, size, width, stride, CHUNK=COPY_COLUMNS, num_warps=4, **options)


def gather_taps_reference(ring: Tensor, start: Tensor, a: Tensor, sums: Tensor) -> None:
    """Do what `gather_taps` does, in torch; any float dtype."""
    size, width = ring.shape
    rows = (start.long() + torch.arange(ROWS, device=a.device)) % size
    a.zero_()
    a[:, :width] = ring[rows]
    sums.copy_(group_sums_reference(a))
