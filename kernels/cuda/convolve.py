"""DFlash 2's convolutions over the rows (tokens) of a block, before (side 0) and after (side 1) a sublayer.

    out[m] = sum over t of (base[side, t] + delta[m, side, t]) * x[m - t]        with zeros before the first row

The caller computes delta as a projection of the sublayer's normed input, one number per row, side, t and group of
channels. `convolve_in` completes the norm of its input, because it mixes rows; `convolve_out` ends like `residual`,
with the inputs of the next norm. Source: inco.ai/blog/dflash2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.norm import TILE, Norm, norm_factor, norm_factor_reference, rstds
from localdflash.kernels.cuda.residual import GROUP, store_norm_inputs, store_norm_inputs_reference, store_sums


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of both sides of one sublayer, for all rows."""

    base: Tensor  # float32 [2, kernel, H]
    delta: Tensor  # float32 [16, 2 * kernel * H / group]
    group: int  # channels that share a delta


@triton.jit
def _coefficients(base, delta, m, n, H, groups, back: tl.constexpr, SIDE: tl.constexpr, KERNEL: tl.constexpr,
                  GROUP: tl.constexpr):  # fmt: skip
    """Return the factors of row m - `back`, for rows m [16, 1] and columns n [1, BN], float32 [16, BN]."""
    at = SIDE * KERNEL + back
    inside = n < H
    delta = tl.load(delta + (m * 2 * KERNEL + at) * groups + n // GROUP, mask=inside, other=0.0)
    return delta + tl.load(base + at * H + n, mask=inside, other=0.0)


@Kernel
@triton.jit
def _convolve_in(a, squares, before, base, delta, out, sums, H, groups, width, size, eps, P: tl.constexpr,
                 KERNEL: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles,)."""
    tile = tl.program_id(0)
    m = tl.arange(0, 16)[:, None]
    n = tile * BN + tl.arange(0, BN)[None, :]
    wait(PDL)
    release(PDL)
    total = tl.zeros((16, BN), tl.float32)
    for back in tl.static_range(KERNEL):
        x = tl.load(a + (m - back) * width + n, mask=(m >= back) & (n < H), other=0.0).to(tl.float32)
        x *= norm_factor(squares, before, P, size, eps, back)[:, None]
        total += x * _coefficients(base, delta, m, n, H, groups, back, 0, KERNEL, GROUP)
    rounded = tl.where(n < H, total, 0.0).to(out.dtype.element_ty)
    tl.store(out + m * width + n, rounded, mask=n < H)
    store_sums(rounded.to(tl.float32), sums, tile * (BN // 32), width // 32, BN)


def convolve_in(a: Tensor, norm: Norm, coefficients: Coefficients, out: Tensor, sums_out: Tensor) -> None:
    """Write the convolution of `a` times the norm's factor to `out`, and the sums of `out` over 32 columns to sums_out.

    a and out: float16 [16, padded_k of their consumer], zero past column H before and after. sums_out: float32
    [columns of out / 32, 16].
    """
    kernel, hidden = coefficients.base.shape[1:]
    _convolve_in[(triton.cdiv(hidden, TILE),)](
        a, norm.squares, norm.before, coefficients.base, coefficients.delta, out, sums_out, hidden,
        hidden // coefficients.group, a.shape[1], norm.size, norm.eps, P=norm.parts, KERNEL=kernel,
        GROUP=coefficients.group, BN=TILE, num_warps=4, **every_launch(a.device),
    )  # fmt: skip


def convolve_in_reference(a: Tensor, norm: Norm, coefficients: Coefficients, out: Tensor, sums_out: Tensor) -> None:
    """Do what `convolve_in` does, in torch and float32; a and out may be float32."""
    hidden = coefficients.base.shape[2]
    mixed = _mixed(a[:, :hidden].float() * norm_factor_reference(norm), coefficients, 0)
    out[:, :hidden] = mixed.to(out.dtype)
    sums_out.copy_(out.float().unflatten(1, (-1, GROUP)).sum(-1).t())


@Kernel
@triton.jit
def _convolve_out(y, bias, base, delta, x, gain, previous_squares, a_out, sums, squares, H, groups, width, size, eps,
                  P: tl.constexpr, BIAS: tl.constexpr, KERNEL: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles,)."""
    tile = tl.program_id(0)
    m = tl.arange(0, 16)[:, None]
    column = tile * BN + tl.arange(0, BN)
    n = column[None, :]
    gains = tl.load(gain + column, mask=column < H, other=0.0)
    wait(PDL)
    release(PDL)
    factor = rstds(previous_squares, P, size, eps, 1)[0]
    total = tl.load(x + m * H + n, mask=n < H, other=0.0)
    for back in tl.static_range(KERNEL):
        here = (m >= back) & (n < H)
        value = tl.load(y + (m - back) * H + n, mask=here, other=0.0)
        if BIAS:
            value += tl.load(bias + n, mask=here, other=0.0)
        total += value * _coefficients(base, delta, m, n, H, groups, back, 1, KERNEL, GROUP)
    tl.store(x + m * H + n, total, mask=n < H)
    store_norm_inputs(total, tile, gains, factor, a_out, sums, squares, H, width, BN)


def convolve_out(
    y: Tensor,
    bias: Tensor | None,
    coefficients: Coefficients,
    x: Tensor,
    gain: Tensor,
    previous_norm: Norm,
    a_out: Tensor,
    sums_out: Tensor,
    squares_out: Tensor,
) -> None:
    """Add the convolution of y + bias to x, and set a_out to x * gain * rstd(previous_norm.squares).

    y float32 [16, H], bias float32 [H] or None; for the other arguments and for aliasing, see `residual`.
    """
    kernel, hidden = coefficients.base.shape[1:]
    _convolve_out[(triton.cdiv(hidden, TILE),)](
        y, y if bias is None else bias, coefficients.base, coefficients.delta, x, gain, previous_norm.squares,
        a_out, sums_out, squares_out, hidden, hidden // coefficients.group, a_out.shape[1], previous_norm.size,
        previous_norm.eps, P=previous_norm.parts, BIAS=bias is not None, KERNEL=kernel, GROUP=coefficients.group,
        BN=TILE, num_warps=4, **every_launch(x.device),
    )  # fmt: skip


def convolve_out_reference(
    y: Tensor,
    bias: Tensor | None,
    coefficients: Coefficients,
    x: Tensor,
    gain: Tensor,
    previous_norm: Norm,
    a_out: Tensor,
    sums_out: Tensor,
    squares_out: Tensor,
) -> None:
    """Do what `convolve_out` does, in torch; a_out may be float32."""
    x += _mixed(y if bias is None else y + bias, coefficients, 1)
    store_norm_inputs_reference(x, gain, previous_norm, a_out, sums_out, squares_out)


def _mixed(x: Tensor, coefficients: Coefficients, side: int) -> Tensor:
    """Return the convolution of rows x [16, H] with the coefficients of one side."""
    kernel = coefficients.base.shape[1]
    delta = coefficients.delta.unflatten(1, (2, kernel, -1))[:, side].repeat_interleave(coefficients.group, -1)
    factors = delta + coefficients.base[side]  # [16, kernel, H]
    parts = [F.pad(x, (0, 0, back, 0))[: len(x)] * factors[:, back] for back in range(kernel)]
    return torch.stack(parts).sum(0)
