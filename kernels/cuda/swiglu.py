"""SwiGLU: silu(gate) * up of 16 rows, fused with the GEMM of gate and up. Source: arXiv 2002.05202.

Rows of the two matrices alternate (gate 0, up 0, gate 1, up 1, ...), so that a tile holds both factors of its outputs.
The output is scaled by 1/16, since it would leave the range of float16 in some models, and a power of two is exact.
The down matrix is multiplied by 16 when it is loaded.
"""

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
from localdflash.kernels.cuda.norm import Norm, norm_factor_reference, norm_factors
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.residual import group_sums_reference, store_sums
from localdflash.kernels.cuda.split_k import SplitWorkspace, arrive, gather

SWIGLU_SCALE = 1 / 16


@triton.jit
def silu(x):
    """Return x * sigmoid(x), without overflow."""
    small = tl.exp(-tl.abs(x))
    return x * tl.where(x < 0, small, 1.0) / (1.0 + small)


@Kernel
@triton.jit
def _swiglu(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, squares_ptr, before_ptr, out_ptr,
            sums_out_ptr, partials_ptr, counters_ptr, K, N, size, eps, columns, width, P: tl.constexpr,
            SCALE: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr,
            CODE: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
            ASM: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles, SPLIT_K, `grid_rows`)."""
    tile, split, rows = tl.program_id(0), tl.program_id(1), first_tile(SCALING)
    wait(PDL)
    factors = norm_factors(squares_ptr + rows * (P * 16), before_ptr + rows * (P * 16), P, size, eps, TILES)
    accs = accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * BN, split,
                      0, R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, SPLIT_K, STAGES, ASM, TILES)  # fmt: skip
    release(PDL)
    if arrive(accs, partials_ptr, counters_ptr, tile, split, BN, SPLIT_K, TILES):
        OUT: tl.constexpr = BN // 2
        n = tile * OUT + tl.arange(0, OUT)
        inside = n[None, :] < columns
        for t in tl.static_range(TILES):
            acc = gather(accs[t], partials_ptr, counters_ptr, tile, BN, SPLIT_K, t, TILES)
            acc *= factors[t][:, None]
            gate, up = tl.split(tl.reshape(acc, (16, OUT, 2)))
            rounded = tl.where(inside, silu(gate) * up * SCALE, 0.0).to(out_ptr.dtype.element_ty)
            m = 16 * (rows + t) + tl.arange(0, 16)
            tl.store(out_ptr + m[:, None] * width + n[None, :], rounded, mask=inside)
            sums_tile = sums_out_ptr + (rows + t) * (width // 2)
            store_sums(rounded.to(tl.float32), sums_tile, tile * (OUT // 32), width // 32, OUT)


def swiglu(
    a: Tensor, sums: Tensor, planes: Planes, norm: Norm | None, out: Tensor, sums_out: Tensor, workspace: SplitWorkspace
) -> None:
    """Set out to silu(g) * u / 16 of g, u = (a @ W^T) * the norm's factor, and sums_out to its sums over 32 columns.

    a float16 [16, padded_k] with its sums [padded_k / 32, 16]; planes [2 F, k], gate and up rows alternate; out
    float16 [16, padded_k of its consumer] and sums_out float32 [out columns / 32, 16] stay zero past column F.
    One call may compute two tiles of rows, or any number for a finished product, bit-identical to separate calls. All
    tensors but those of the planes are then [T, ...].
    """
    cut, (programs, tiles) = plan(planes.n, planes.padded_k, a.device), grid_rows(a, planes)
    squares, before, parts, size, eps = (
        (sums, sums, 0, 1, 0.0) if norm is None else (norm.squares, norm.before, norm.parts, norm.size, norm.eps)
    )
    _swiglu[(cut.tiles, cut.SPLIT_K, programs)](
        a, sums, *pointers(planes), squares, before, out, sums_out, workspace.partials, workspace.counters,
        planes.padded_k, planes.padded_n, size, eps, planes.n // 2, out.shape[-1], P=parts, SCALE=SWIGLU_SCALE,
        **plane_constants(planes), BN=cut.BN, SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES, TILES=tiles,
        num_warps=cut.num_warps, **every_launch(a.device),
    )  # fmt: skip


def swiglu_reference(
    a: Tensor,
    sums: Tensor,
    planes: Planes,
    norm: Norm | None,
    out: Tensor,
    sums_out: Tensor,
    workspace: SplitWorkspace | None,
) -> None:
    """Do what `swiglu` does, in torch and float32; a and out may be float32."""
    product = product_reference(a, planes) * norm_factor_reference(norm)
    gate, up = product.unflatten(-1, (-1, 2)).unbind(-1)
    out[..., : planes.n // 2] = (F.silu(gate) * up * SWIGLU_SCALE).to(out.dtype)
    sums_out.copy_(group_sums_reference(out))
