"""RMSNorm fused into other kernels: producers store partial sums of squares, consumers scale their accumulator.

A producer stores `a = x * gain * r` in float16, and `squares`, the sums of x^2 over tiles of 128 columns. The factor
r = rstd(before), of the previous norm's squares, keeps a in range. The consumer's product is linear in a, so
multiplying its rows by rstd(squares) / rstd(before) gives the product with the normed x.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import ASM

TILE = 128  # columns per partial sum of squares
COMPILED = tl.constexpr(ASM)


@dataclass(frozen=True)
class Norm:
    """Data with which a consumer finishes the norm of its input, whose rows have `size` values."""

    squares: Tensor  # float32 [parts, 16], or [T, parts, 16] of T tiles of rows
    before: Tensor  # `squares` of the previous norm, whose rstd is already a factor of the input
    size: int
    eps: float

    @property
    def parts(self) -> int:
        """Number of partial sums per row: P of `rstd`."""
        return self.squares.shape[-2]


@triton.jit
def square(x):
    """Return the rounded square of x; the compiler cannot fuse it with an addition."""
    if COMPILED:
        y = tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = x * x
    return y


@triton.jit
def rstd(squares_ptr, P: tl.constexpr, H, eps, BM: tl.constexpr = 16, BACK: tl.constexpr = 0):
    """Return 1 / sqrt(sum over P parts / H + eps), float32 [BM]; entry m is that of row max(m - BACK, 0)."""
    p = tl.arange(0, triton.next_power_of_2(P))
    m = tl.arange(0, BM)
    if BACK:
        m = tl.maximum(m - BACK, 0)
    squares = tl.load(squares_ptr + p[:, None] * BM + m[None, :], mask=p[:, None] < P, other=0.0)
    return tl.math.rsqrt(tl.sum(squares, 0) / H + eps)


@triton.jit
def norm_factor(squares_ptr, before_ptr, P: tl.constexpr, H, eps, BACK: tl.constexpr = 0):
    """Return the factors of a consumer's accumulator rows, float32 [16]; ones if P is 0; BACK: see `rstd`."""
    if P == 0:
        return tl.full((16,), 1.0, tl.float32)
    else:  # noqa: RET505 (a branch not taken must not be compiled)
        return rstd(squares_ptr, P, H, eps, 16, BACK) / rstd(before_ptr, P, H, eps, 16, BACK)


@triton.jit
def norm_factors(squares_ptr, before_ptr, P: tl.constexpr, H, eps, TILES: tl.constexpr):
    """Return `norm_factor` of the first and of the last of TILES tiles of rows, one or two, each float32 [16].

    Consumers load it before their product: an epilogue that waits for memory costs 4 % of a step on an H100.
    """
    last = (TILES - 1) * P * 16
    first_factor = norm_factor(squares_ptr, before_ptr, P, H, eps)
    return first_factor, norm_factor(squares_ptr + last, before_ptr + last, P, H, eps)


@triton.jit
def rstds(squares_ptr, P: tl.constexpr, H, eps, TILES: tl.constexpr):
    """Return `rstd` of the first and of the last of TILES tiles of rows; ones if P is 0."""
    if P == 0:
        ones = tl.full((16,), 1.0, tl.float32)
        return ones, ones
    else:  # noqa: RET505 (a branch not taken must not be compiled)
        return rstd(squares_ptr, P, H, eps), rstd(squares_ptr + (TILES - 1) * P * 16, P, H, eps)


def rstd_reference(squares: Tensor, size: int, eps: float) -> Tensor:
    """Return 1 / sqrt(sum of squares / size + eps) for squares [..., parts, 16], float32 [..., 16]."""
    return torch.rsqrt(squares.sum(-2) / size + eps)


def norm_factor_reference(norm: Norm | None) -> Tensor | float:
    """Return the factors of a consumer's rows, [..., 16, 1], or 1 without a norm."""
    if norm is None:
        return 1.0
    factor = rstd_reference(norm.squares, norm.size, norm.eps) / rstd_reference(norm.before, norm.size, norm.eps)
    return factor.unsqueeze(-1)
