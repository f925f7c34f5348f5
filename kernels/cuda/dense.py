"""Unpacks a quantized matrix to float16 for cuBLAS, which is faster if many rows make a product bound by arithmetic."""

import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.embed import decode_weights
from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import plane_constants, pointers
from localdflash.kernels.cuda.planes import COLUMNS, SUPER, Planes


@Kernel
@triton.jit
def _dense(base, high, scales, supers, minimums, out, N, BN: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr,
           SCALING: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
           SUPER: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (blocks along k, N / BN)."""
    block = tl.program_id(0) + tl.zeros((1, 1, 1), tl.int32)
    column = tl.program_id(1) * BN + tl.arange(0, BN)[None, None, :]
    field = tl.arange(0, 4)[:, None, None]
    r = tl.arange(0, R)[None, :, None]
    wait(PDL)
    release(PDL)
    weight = decode_weights(base, high, scales, supers, minimums, N, column, block, field, r, block >= 0,
                            R, HIGH_BITS, SCALING, HAS_MIN, ZERO, CODE, SUPER)  # fmt: skip
    k = (block * (4 * R) + field * R + r).to(tl.int64)
    tl.store(out + k * N + column, weight.to(out.dtype.element_ty))


def dense(planes: Planes, out: Tensor) -> None:
    """Write W^T to out, float16 [padded_k, padded_n]; only the first k rows and n columns are defined."""
    constants = plane_constants(planes)
    del constants["ASM"]
    _dense[(planes.padded_k // (4 * planes.block_words), planes.padded_n // COLUMNS)](
        *pointers(planes), out, planes.padded_n, BN=COLUMNS, SUPER=SUPER, num_warps=4, **constants,
        **every_launch(out.device),
    )  # fmt: skip


def dense_reference(planes: Planes, out: Tensor) -> None:
    """Do what `dense` does, in torch; out may be float32."""
    out[: planes.k, : planes.n] = planes.dense.T
