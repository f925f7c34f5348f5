"""The 16-row GEMM on quantized weights: out[16, n] = a[16, k] @ W[n, k]^T, W in planes; `accumulate` is its core.

Plain decoding and verification run the same tiles in the same order however many rows are live, so that the bits of a
row never depend on the other rows. Rows that are not live may hold anything, NaN too.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda import launch
from localdflash.kernels.cuda.launch import ASM, Kernel, every_launch, release, wait
from localdflash.kernels.cuda.norm import Norm, norm_factor, norm_factor_reference
from localdflash.kernels.cuda.planes import SUPER, Planes
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace, arrive, gather
from localdflash.kernels.cuda.unpack import TINY, byte, float16, half, unit, unpack, unpack_minimums, unpack_scaled

SUPER_WEIGHTS = tl.constexpr(SUPER)


@triton.jit
def accumulate(
    a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert,
    R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
    HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
    TILES: tl.constexpr = 1,
):  # fmt: skip
    """Return one program's part of a @ W^T: columns from `column` on, range `split` of SPLIT_K along k.

    A float32 [16, BN] for each of TILES tiles of 16 rows, one or two, in a tuple. Weights are unpacked once for both,
    and each tile has sums of its own, in the order of a single one: so a row has the same bits in either. Products that
    are added are fused by name (`tl.fma`), here and in epilogues: a compiler would fuse others in another kernel.

    a float16 [TILES, 16, K], sums float32 [TILES, K / 32, 16] (read only with minimums), the planes' tensors as
    `pointers` gives them, `expert` the matrix of a stack (else 0); K and N are padded. A "product" is only loaded.
    """
    if SCALING == "product":
        here = base_ptr + tl.arange(0, 16)[:, None] * N + column + tl.arange(0, BN)[None, :]
        acc = tl.load(here)
        other = tl.load(here + 16 * N) if TILES == 2 else acc
    else:
        acc, other = _multiply(
            a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert, R,
            HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, SPLIT_K, STAGES, ASM, TILES,
        )  # fmt: skip
    return acc, other


@triton.jit
def _multiply(
    a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert,
    R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
    HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """`accumulate` for weights."""
    BLOCKS: tl.constexpr = 1 if SCALING != "byte4" else 32 // R
    # High planes and second tiles take memory too: two programs are to fit into 100 KB.
    DEPTH: tl.constexpr = STAGES - (HIGH_BITS != 0) - (TILES == 2 and HIGH_BITS != 2) if STAGES > 1 else 1
    LEAST: tl.constexpr = SUPER_WEIGHTS // (4 * R) if SCALING == "byte4" else 1  # a super is never split
    SCALE_WORDS: tl.constexpr = 2 if SCALING == "half4" else 1
    blocks = K // (4 * R)
    per_split = tl.cdiv(blocks // LEAST, SPLIT_K) * LEAST
    first = tl.minimum(split * per_split, blocks)
    last = tl.minimum(first + per_split, blocks)
    skipped = tl.cast(expert, tl.int64) * blocks
    base_ptr += skipped * (R * N) + column
    high_ptr += skipped * (R * N) + column
    scale_ptr += skipped * (SCALE_WORDS * N) + column
    supers_ptr += skipped // LEAST * N + column
    minimum_ptr += skipped * (SCALE_WORDS * N) + column
    m = tl.arange(0, 16)
    n = tl.arange(0, BN)
    r = tl.arange(0, R)
    if HAS_MIN:  # first, so that its loads do not follow the last product: 3 % of a step on an H100
        less, less_other = minimums(sums_ptr, minimum_ptr, supers_ptr, K, N, first, last, SCALING, BN, ASM, TILES)
    acc = tl.zeros((16, BN), tl.float32)
    other = tl.zeros((16, BN), tl.float32)  # of the second tile
    for step in tl.range(first // BLOCKS, last // BLOCKS, num_stages=DEPTH):
        product = acc if SCALING == "half4" else tl.zeros((16, BN), tl.float32)
        second = other if SCALING == "half4" else tl.zeros((16, BN), tl.float32)
        for i in tl.static_range(BLOCKS):
            block = step * BLOCKS + i
            here = (block * R + r)[:, None] * N + n[None, :]
            words = tl.load(base_ptr + here, eviction_policy="evict_first")
            high = words
            if HIGH_BITS != 0:
                high = tl.load(high_ptr + here, eviction_policy="evict_first")
            a = a_ptr + m[:, None] * K + (block * (4 * R) + r)[None, :]
            scales = scale_ptr + block * SCALE_WORDS * N + n
            product, second = _product(a, words, high, scales, K, N, product, second, R, HIGH_BITS, SCALING, ZERO,
                                       CODE, ASM, TILES)  # fmt: skip
        if SCALING == "half4":
            acc, other = product, second
        else:
            if SCALING == "block":
                scale = tl.load(scale_ptr + step * N + n)[None, :]
            else:
                scale = half(tl.load(supers_ptr + step * BLOCKS // LEAST * N + n), 0)[None, :]
            acc = tl.fma(product, scale, acc)
            if TILES == 2:
                other = tl.fma(second, scale, other)
    if SCALING == "byte4" and R == 32:
        acc *= TINY
        other *= TINY
    if HAS_MIN:
        acc -= less
        other -= less_other
    return acc * unit(CODE), other * unit(CODE)


@triton.jit
def _product(
    a, words, high, scales, K, N, acc, other, R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr,
    ZERO: tl.constexpr, CODE: tl.constexpr, ASM: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add a block's product with a, and with the tile behind it; scaled by "half4" wholly, by "byte4" up to the
    super-scale.
    """
    if SCALING == "byte4" and R == 32:
        w0, w1, w2, w3 = unpack_scaled(words, high, tl.load(scales), HIGH_BITS, ASM)
    else:
        w0, w1, w2, w3 = unpack(words, high, HIGH_BITS, ZERO, CODE, ASM)
    if SCALING == "half4" or (SCALING == "byte4" and R == 16):
        s = tl.load(scales)
        if SCALING == "byte4":
            s0, s1, s2, s3 = byte(s, 0), byte(s, 1), byte(s, 2), byte(s, 3)
        else:
            t = tl.load(scales + N)
            s0, s1, s2, s3 = half(s, 0), half(s, 1), half(t, 0), half(t, 1)
        acc = _scaled_dot4(a, w0, w1, w2, w3, s0, s1, s2, s3, acc, R)
        if TILES == 2:
            other = _scaled_dot4(a + 16 * K, w0, w1, w2, w3, s0, s1, s2, s3, other, R)
    else:
        acc = _dot4(a, w0, w1, w2, w3, acc, R)
        if TILES == 2:
            other = _dot4(a + 16 * K, w0, w1, w2, w3, other, R)
    return acc, other


@triton.jit
def _dot4(a, w0, w1, w2, w3, acc, R: tl.constexpr):
    """Add a block's product: a points to its first operand tile, the others follow."""
    acc = tl.dot(tl.load(a), w0, acc)
    acc = tl.dot(tl.load(a + R), w1, acc)
    acc = tl.dot(tl.load(a + 2 * R), w2, acc)
    return tl.dot(tl.load(a + 3 * R), w3, acc)


@triton.jit
def _scaled_dot4(a, w0, w1, w2, w3, s0, s1, s2, s3, acc, R: tl.constexpr):
    """Add four products with a scale [BN] for each tile, which would not fit into float16 weights exactly."""
    acc = tl.fma(tl.dot(tl.load(a), w0), s0[None, :], acc)
    acc = tl.fma(tl.dot(tl.load(a + R), w1), s1[None, :], acc)
    acc = tl.fma(tl.dot(tl.load(a + 2 * R), w2), s2[None, :], acc)
    return tl.fma(tl.dot(tl.load(a + 3 * R), w3), s3[None, :], acc)


@triton.jit
def minimums(
    sums_ptr, minimum_ptr, supers_ptr, K, N, first, last, SCALING: tl.constexpr, BN: tl.constexpr, ASM: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Sums times minimums over blocks of four groups of 32, sixteen blocks at a time, float32 [16, BN] of two tiles."""
    m = tl.arange(0, 16)
    n = tl.arange(0, BN)
    acc = tl.zeros((16, BN), tl.float32)
    other = tl.zeros((16, BN), tl.float32)
    for start in tl.range(first, last, 16, num_stages=2):
        block = start + tl.arange(0, 16)
        valid = block < last
        sums = sums_ptr + (block * 64)[None, :] + m[:, None]
        if SCALING == "half4":
            pairs = minimum_ptr + (2 * block)[:, None] * N + n[None, :]
            low = tl.load(pairs, mask=valid[:, None], other=0)
            high = tl.load(pairs + N, mask=valid[:, None], other=0)
            p0, p1, p2, p3 = float16(low, 0), float16(low, 1), float16(high, 0), float16(high, 1)
            r0, r1, r2, r3 = p0, p1, p2, p3  # float16 numbers leave no rests
        else:
            words = tl.load(minimum_ptr + block[:, None] * N + n[None, :], mask=valid[:, None], other=0)
            supers = tl.load(supers_ptr + (block // 2)[:, None] * N + n[None, :], mask=valid[:, None], other=0)
            p0, p1, p2, p3, r0, r1, r2, r3 = unpack_minimums(words, supers, ASM)
        RESTS: tl.constexpr = SCALING != "half4"
        acc = _minimum_dots(sums, valid, p0, p1, p2, p3, r0, r1, r2, r3, acc, RESTS)
        if TILES == 2:
            other = _minimum_dots(sums + K // 2, valid, p0, p1, p2, p3, r0, r1, r2, r3, other, RESTS)
    return acc * 32.0, other * 32.0


@triton.jit
def _minimum_dots(sums, valid, p0, p1, p2, p3, r0, r1, r2, r3, acc, RESTS: tl.constexpr):
    """Add a tile's sums, four groups a block, times float16 numbers and what those have lost."""
    s0 = tl.load(sums, mask=valid[None, :], other=0.0)
    s1 = tl.load(sums + 16, mask=valid[None, :], other=0.0)
    s2 = tl.load(sums + 32, mask=valid[None, :], other=0.0)
    s3 = tl.load(sums + 48, mask=valid[None, :], other=0.0)
    acc = _float32_dot(s0, p0, acc)
    if RESTS:
        acc = _rest_dot(s0, r0, acc)
    acc = _float32_dot(s1, p1, acc)
    if RESTS:
        acc = _rest_dot(s1, r1, acc)
    acc = _float32_dot(s2, p2, acc)
    if RESTS:
        acc = _rest_dot(s2, r2, acc)
    acc = _float32_dot(s3, p3, acc)
    if RESTS:
        acc = _rest_dot(s3, r3, acc)
    return acc


@triton.jit
def _float32_dot(x, halves, acc):
    """Add x / 32 times float16 numbers with float16 matrix instructions, to nearly float32's precision."""
    x *= 0.03125  # the sum of 32 float16 numbers need not be one
    top = x.to(tl.float16)
    acc = tl.dot(top, halves, acc)
    return tl.dot((x - top.to(tl.float32)).to(tl.float16), halves, acc)


@triton.jit
def _rest_dot(x, rest, acc):
    """Add x / 32 times what float16 numbers lost."""
    return tl.dot((x * 0.03125).to(tl.float16), rest, acc)


def pointers(planes: Planes) -> tuple[Tensor, ...]:
    """Return the planes' tensors in the order of `accumulate`; an absent one is given as `base`, and not read."""
    tensors = (planes.base, planes.high, planes.scale, planes.supers, planes.minimum)
    return tuple(planes.base if tensor is None else tensor for tensor in tensors)


def switches(planes: Planes) -> dict[str, Any]:
    """Return the planes' compile-time arguments of `accumulate`, and ASM."""
    return {
        "R": planes.rows,
        "HIGH_BITS": planes.high_bits,
        "SCALING": planes.scaling,
        "ZERO": planes.zero,
        "CODE": planes.code,
        "HAS_MIN": planes.minimum is not None,
        "ASM": ASM,
    }


def tiles_of(a: Tensor) -> int:
    """Return the number of tiles of 16 rows in activations [16, K] or [T, 16, K]: the constant TILES."""
    return a.shape[0] if a.ndim == 3 else 1


@Kernel
@triton.jit
def _matmul(
    a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, squares_ptr, before_ptr, out_ptr,
    partials_ptr, counters_ptr, K, N, columns, size, eps, P: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr,
    SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr,
    SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    factor = norm_factor(squares_ptr, before_ptr, P, size, eps)[:, None]
    accs = accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * BN, split,
                      0, R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, SPLIT_K, STAGES, ASM)  # fmt: skip
    release(PDL)
    if arrive(accs, partials_ptr, counters_ptr, tile, split, BN, SPLIT_K):
        acc = gather(accs[0], partials_ptr, counters_ptr, tile, BN, SPLIT_K)
        acc *= factor
        n = tile * BN + tl.arange(0, BN)
        out = out_ptr + tl.arange(0, 16)[:, None] * columns + n[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=n[None, :] < columns)


def plan(n: int, k: int, device: torch.device, BN: int = 128) -> SplitPlan:
    """Return how to cut a GEMM of weights [n, k], k padded, into programs that fill the device evenly.

    It depends on the weights and the device alone: with another cut for other numbers of rows, a row's sums would run
    in another order, and verified tokens would differ from decoded ones.
    """
    if launch.is_simplest():
        return SplitPlan(triton.cdiv(n, BN), BN, SPLIT_K=1, STAGES=1)
    return _best_plan(n, k, device, BN)


@functools.cache
def _best_plan(n: int, k: int, device: torch.device, BN: int) -> SplitPlan:
    """Return the division that takes the fewest blocks one after another."""
    processors, roomy = launch.multiprocessors(device)
    tiles, supers = triton.cdiv(n, BN), triton.cdiv(k, SUPER)

    def time(split: int) -> int:
        """In blocks that a program reads, besides filling its pipeline (4) and handing in its part (2)."""
        rounds = triton.cdiv(tiles * split, (3 if roomy else 2) * processors)
        return rounds * (2 * triton.cdiv(supers, split) + 4 + (2 if split > 1 else 0))

    splits = [split for split in range(1, max(1, min(16, supers // 2)) + 1) if _is_even(supers, split)]
    return SplitPlan(tiles, BN, min(splits, key=time))


def _is_even(supers: int, split: int) -> bool:
    """Return whether every one of `split` programs has a super to read, in parts that are as large as the first's."""
    return (split - 1) * triton.cdiv(supers, split) < supers


def matmul(
    a: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: SplitWorkspace, norm: Norm | None = None
) -> None:
    """Store (a @ W^T) * the norm's factor in out, float32 or float16 [16, n].

    a float16 [16, padded_k], sums float32 [padded_k / 32, 16].
    """
    cut = plan(planes.n, planes.padded_k, a.device)
    squares, before, parts, size, eps = (
        (sums, sums, 0, 1, 0.0) if norm is None else (norm.squares, norm.before, norm.parts, norm.size, norm.eps)
    )
    _matmul[(cut.tiles, cut.SPLIT_K)](
        a, sums, *pointers(planes), squares, before, out, workspace.partials, workspace.counters,
        planes.padded_k, planes.padded_n, planes.n, size, eps, P=parts, **switches(planes),
        BN=cut.BN, SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES, num_warps=cut.num_warps, **every_launch(a.device),
    )  # fmt: skip


def matmul_reference(
    a: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: SplitWorkspace, norm: Norm | None = None
) -> None:
    """Compute the kernel's result from the dense weights, in float32; a may be float32."""
    out.copy_(product_reference(a, planes) * norm_factor_reference(norm))


def product_reference(a: Tensor, planes: Planes) -> Tensor:
    """Float32 a @ W^T of [16, K] or [T, 16, K], each tile by itself: torch may add more rows in another order."""
    if a.ndim == 3:
        return torch.stack([product_reference(tile, planes) for tile in a])
    return a[:, : planes.k].float() @ planes.dense.T
