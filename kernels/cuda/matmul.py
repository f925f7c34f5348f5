"""The 16-row GEMM on quantized weights (`Planes`): out[16, n] = a[16, k] @ W[n, k]^T; `accumulate` is its core.

A row is one token. Single-token decoding and verification run the same tiles in the same order for any number of used
rows, so the bits of a row never depend on the other rows. Unused rows may hold anything, even NaN.
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
from localdflash.kernels.cuda.unpack import TINY, float16, half, unit, unpack, unpack_minimums, unpack_scaled

SUPER_WEIGHTS = tl.constexpr(SUPER)


@triton.jit
def accumulate(
    a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert,
    R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
    HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
    TILES: tl.constexpr = 1,
):  # fmt: skip
    """Return one program's part of a @ W^T: BN columns from `column` on, part `split` of SPLIT_K of the sum over k.

    The result is a tuple with a float32 [16, BN] for each of TILES (1 or 2) tiles of 16 rows. Weights are unpacked once
    for both tiles. Each tile has its own sums, in the same order, so a row has the same bits in either tile. Multiply-
    adds are explicit (`tl.fma`), here and in epilogues, since a compiler would fuse others in another kernel.

    `a` is float16 [TILES, 16, K]; `sums` float32 [TILES, K / 32, 16] is read only with minimums. The planes' tensors
    come from `pointers`; `expert` is the index of the matrix in a stack, else 0. K and N are padded. With SCALING
    "product" the tile `first_tile` of the finished product is loaded; TILES is 1.
    """
    if SCALING == "product":
        m = 16 * first_tile(SCALING) + tl.arange(0, 16)
        acc = tl.load(base_ptr + m[:, None] * N + column + tl.arange(0, BN)[None, :])
        acc2 = acc
    else:
        acc, acc2 = _multiply(
            a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert, R,
            HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, SPLIT_K, STAGES, ASM, TILES,
        )  # fmt: skip
    return acc, acc2


@triton.jit
def first_tile(SCALING: tl.constexpr):
    """Return this program's first tile of 16 rows, in a grid of (tiles of columns, SPLIT_K, `grid_rows`)."""
    return tl.program_id(2) if SCALING == "product" else 0


@triton.jit
def _multiply(
    a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, column, split, expert,
    R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr,
    HAS_MIN: tl.constexpr, BN: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Compute the result of `accumulate` for any SCALING but "product"."""
    # A word of a two-bit plane holds fields of two tiles of 16 words: two blocks (R = 16) or two halves of one.
    PARTS: tl.constexpr = 2 if HIGH_BITS == 2 else 1
    BLOCKS: tl.constexpr = 32 // R if HIGH_BITS == 2 else 1
    WORDS: tl.constexpr = R * BLOCKS // PARTS  # of a tile
    # High planes and second tiles take shared memory too; two programs must fit into 100 KB.
    DEPTH: tl.constexpr = STAGES - (HIGH_BITS != 0) - (TILES == 2 and HIGH_BITS != 2) if STAGES > 1 else 1
    SUPER_BLOCKS: tl.constexpr = SUPER_WEIGHTS // (4 * R) if SCALING == "byte4" else 1  # never split
    SCALE_WORDS: tl.constexpr = 2 if SCALING == "half4" else 1
    blocks = K // (4 * R)
    per_split = tl.cdiv(blocks // SUPER_BLOCKS, SPLIT_K) * SUPER_BLOCKS
    first = tl.minimum(split * per_split, blocks)
    last = tl.minimum(first + per_split, blocks)
    skipped = tl.cast(expert, tl.int64) * blocks
    base_ptr += skipped * (R * N) + column
    high_ptr += skipped * (R // PARTS * N) + column
    scale_ptr += skipped * (SCALE_WORDS * N) + column
    supers_ptr += skipped // SUPER_BLOCKS * N + column
    minimum_ptr += skipped * (SCALE_WORDS * N) + column
    m = tl.arange(0, 16)
    n = tl.arange(0, BN)
    r = tl.arange(0, WORDS)
    if HAS_MIN:  # before the products: loads after the last product cost 3% of a step on an H100
        shift, shift2 = minimums(sums_ptr, minimum_ptr, supers_ptr, K, N, first, last, SCALING, BN, ASM, TILES)
    acc = tl.zeros((16, BN), tl.float32)
    acc2 = tl.zeros((16, BN), tl.float32)  # of the second tile
    for step in tl.range(first // BLOCKS, last // BLOCKS, num_stages=DEPTH):
        product = acc if SCALING == "half4" else tl.zeros((16, BN), tl.float32)
        product2 = acc2 if SCALING == "half4" else tl.zeros((16, BN), tl.float32)
        if HIGH_BITS != 0:
            offsets = (step * WORDS + r)[:, None] * N + n[None, :]
            high = tl.load(high_ptr + offsets, eviction_policy="evict_first")
        for part in tl.static_range(PARTS):
            block = step * BLOCKS + part * BLOCKS // PARTS
            first_word = part * WORDS % R
            offsets = (block * R + first_word + r)[:, None] * N + n[None, :]
            words = tl.load(base_ptr + offsets, eviction_policy="evict_first")
            if HIGH_BITS == 0:
                high = words
            a = a_ptr + m[:, None] * K + (block * (4 * R) + first_word + r)[None, :]
            scales = scale_ptr + block * SCALE_WORDS * N + n
            product, product2 = _product(a, words, high, part, scales, K, N, product, product2, R, HIGH_BITS, SCALING,
                                         ZERO, CODE, ASM, TILES)  # fmt: skip
        if SCALING == "half4":
            acc, acc2 = product, product2
        else:
            if SCALING == "block":
                scale = tl.load(scale_ptr + step * N + n)[None, :]
            else:
                scale = half(tl.load(supers_ptr + step * BLOCKS // SUPER_BLOCKS * N + n), 0)[None, :]
            acc = tl.fma(product, scale, acc)
            if TILES == 2:
                acc2 = tl.fma(product2, scale, acc2)
    if SCALING == "byte4":
        acc *= TINY
        acc2 *= TINY
    if HAS_MIN:
        acc -= shift
        acc2 -= shift2
    return acc * unit(CODE), acc2 * unit(CODE)


@triton.jit
def _product(
    a, words, high, part: tl.constexpr, scales, K, N, acc, acc2, R: tl.constexpr, HIGH_BITS: tl.constexpr,
    SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, ASM: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add a tile's product with each tile of rows to acc, acc2: scaled for "half4", without super-scale for "byte4"."""
    if SCALING == "byte4":
        w0, w1, w2, w3 = unpack_scaled(words, high, tl.load(scales), part, HIGH_BITS, ZERO, R == 16, ASM)
    else:
        w0, w1, w2, w3 = unpack(words, high, HIGH_BITS, ZERO, CODE, ASM)
    if SCALING == "half4":
        s, t = tl.load(scales), tl.load(scales + N)
        s0, s1, s2, s3 = half(s, 0), half(s, 1), half(t, 0), half(t, 1)
        acc = _scaled_dot4(a, w0, w1, w2, w3, s0, s1, s2, s3, acc, R)
        if TILES == 2:
            acc2 = _scaled_dot4(a + 16 * K, w0, w1, w2, w3, s0, s1, s2, s3, acc2, R)
    else:
        acc = _dot4(a, w0, w1, w2, w3, acc, R)
        if TILES == 2:
            acc2 = _dot4(a + 16 * K, w0, w1, w2, w3, acc2, R)
    return acc, acc2


@triton.jit
def _dot4(a, w0, w1, w2, w3, acc, R: tl.constexpr):
    """Add the products of a block's four operand tiles with four tiles of weights; the first operand is at `a`."""
    acc = tl.dot(tl.load(a), w0, acc)
    acc = tl.dot(tl.load(a + R), w1, acc)
    acc = tl.dot(tl.load(a + 2 * R), w2, acc)
    return tl.dot(tl.load(a + 3 * R), w3, acc)


@triton.jit
def _scaled_dot4(a, w0, w1, w2, w3, s0, s1, s2, s3, acc, R: tl.constexpr):
    """Add these four products, each times its scale [BN]: scaled weights would not be exact in float16."""
    acc = tl.fma(tl.dot(tl.load(a), w0), s0[None, :], acc)
    acc = tl.fma(tl.dot(tl.load(a + R), w1), s1[None, :], acc)
    acc = tl.fma(tl.dot(tl.load(a + 2 * R), w2), s2[None, :], acc)
    return tl.fma(tl.dot(tl.load(a + 3 * R), w3), s3[None, :], acc)


@triton.jit
def minimums(
    sums_ptr, minimum_ptr, supers_ptr, K, N, first, last, SCALING: tl.constexpr, BN: tl.constexpr, ASM: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Return activation sums times minimums of blocks `first` to `last` - 1, float32 [16, BN] for each of two tiles."""
    m = tl.arange(0, 16)
    n = tl.arange(0, BN)
    acc = tl.zeros((16, BN), tl.float32)
    acc2 = tl.zeros((16, BN), tl.float32)
    for start in tl.range(first, last, 16, num_stages=2):
        block = start + tl.arange(0, 16)
        valid = block < last
        sums = sums_ptr + (block * 64)[None, :] + m[:, None]
        if SCALING == "half4":
            pairs = minimum_ptr + (2 * block)[:, None] * N + n[None, :]
            low = tl.load(pairs, mask=valid[:, None], other=0)
            high = tl.load(pairs + N, mask=valid[:, None], other=0)
            p0, p1, p2, p3 = float16(low, 0), float16(low, 1), float16(high, 0), float16(high, 1)
            r0, r1, r2, r3 = p0, p1, p2, p3  # float16 minimums are exact
        else:
            words = tl.load(minimum_ptr + block[:, None] * N + n[None, :], mask=valid[:, None], other=0)
            supers = tl.load(supers_ptr + (block // 2)[:, None] * N + n[None, :], mask=valid[:, None], other=0)
            p0, p1, p2, p3, r0, r1, r2, r3 = unpack_minimums(words, supers, ASM)
        HAS_ERRORS: tl.constexpr = SCALING != "half4"
        acc = _minimum_dots(sums, valid, p0, p1, p2, p3, r0, r1, r2, r3, acc, HAS_ERRORS)
        if TILES == 2:
            acc2 = _minimum_dots(sums + K // 2, valid, p0, p1, p2, p3, r0, r1, r2, r3, acc2, HAS_ERRORS)
    return acc * 32.0, acc2 * 32.0


@triton.jit
def _minimum_dots(sums, valid, p0, p1, p2, p3, r0, r1, r2, r3, acc, HAS_ERRORS: tl.constexpr):
    """Add a tile's sums / 32, four groups per block, times float16 minimums p and, with HAS_ERRORS, their errors r."""
    s0 = tl.load(sums, mask=valid[None, :], other=0.0)
    s1 = tl.load(sums + 16, mask=valid[None, :], other=0.0)
    s2 = tl.load(sums + 32, mask=valid[None, :], other=0.0)
    s3 = tl.load(sums + 48, mask=valid[None, :], other=0.0)
    acc = _float32_dot(s0, p0, acc)
    if HAS_ERRORS:
        acc = _error_dot(s0, r0, acc)
    acc = _float32_dot(s1, p1, acc)
    if HAS_ERRORS:
        acc = _error_dot(s1, r1, acc)
    acc = _float32_dot(s2, p2, acc)
    if HAS_ERRORS:
        acc = _error_dot(s2, r2, acc)
    acc = _float32_dot(s3, p3, acc)
    if HAS_ERRORS:
        acc = _error_dot(s3, r3, acc)
    return acc


@triton.jit
def _float32_dot(x, halves, acc):
    """Add x / 32 times float16 numbers with float16 matrix instructions, to nearly float32's precision."""
    x *= 0.03125  # the sum of 32 float16 numbers may exceed float16
    top = x.to(tl.float16)
    acc = tl.dot(top, halves, acc)
    return tl.dot((x - top.to(tl.float32)).to(tl.float16), halves, acc)


@triton.jit
def _error_dot(x, errors, acc):
    """Add x / 32 times the rounding errors of float16 numbers."""
    return tl.dot((x * 0.03125).to(tl.float16), errors, acc)


def pointers(planes: Planes) -> tuple[Tensor, ...]:
    """Return the planes' tensors in the order of `accumulate`, with `base` in place of absent ones."""
    tensors = (planes.base, planes.high, planes.scale, planes.supers, planes.minimum)
    return tuple(planes.base if tensor is None else tensor for tensor in tensors)


def plane_constants(planes: Planes) -> dict[str, Any]:
    """Return the planes' compile-time arguments of `accumulate`, and ASM."""
    return {
        "R": planes.block_words,
        "HIGH_BITS": planes.high_bits,
        "SCALING": planes.scaling,
        "ZERO": planes.zero,
        "CODE": planes.code,
        "HAS_MIN": planes.minimum is not None,
        "ASM": ASM,
    }


def grid_rows(a: Tensor, planes: Planes) -> tuple[int, int]:
    """Return the number of programs along the rows of a [16, K] or [T, 16, K], and the tiles of each program: TILES.

    A program unpacks weights once for all of its tiles, but a finished product needs no unpacking.
    """
    tiles = a.shape[0] if a.ndim == 3 else 1
    return (tiles, 1) if planes.scaling == "product" else (1, tiles)


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
    """Return the division of a GEMM with weights [n, k], k padded, into programs that fill the device evenly.

    It depends only on the weights and the device. If it depended on the number of rows, sums would have another order,
    and verified tokens would differ from decoded ones.
    """
    if launch.is_simplest():
        return SplitPlan(triton.cdiv(n, BN), BN, SPLIT_K=1, STAGES=1)
    return _best_plan(n, k, device, BN)


@functools.cache
def _best_plan(n: int, k: int, device: torch.device, BN: int) -> SplitPlan:
    """Return the division with the shortest estimated time."""
    processors, has_large_memory = launch.multiprocessors(device)
    tiles, super_blocks = triton.cdiv(n, BN), max(1, triton.cdiv(k, SUPER))  # k is 0 for a finished product

    def time(split: int) -> int:
        """Return the time in blocks of 128 read, plus 4 to fill the pipeline and 2 to store a partial result."""
        rounds = triton.cdiv(tiles * split, (3 if has_large_memory else 2) * processors)
        return rounds * (2 * triton.cdiv(super_blocks, split) + 4 + (2 if split > 1 else 0))

    splits = [split for split in range(1, max(1, min(16, super_blocks // 2)) + 1) if _is_even(super_blocks, split)]
    return SplitPlan(tiles, BN, min(splits, key=time))


def _is_even(super_blocks: int, split: int) -> bool:
    """Return whether none of `split` programs is left without super-blocks if all parts are as large as the first."""
    return (split - 1) * triton.cdiv(super_blocks, split) < super_blocks


def matmul(
    a: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: SplitWorkspace, norm: Norm | None = None
) -> None:
    """Store (a @ W^T) * the factor of `norm` in out, float32 or float16 [16, n].

    a float16 [16, padded_k], sums float32 [padded_k / 32, 16].
    """
    cut = plan(planes.n, planes.padded_k, a.device)
    squares, before, parts, size, eps = (
        (sums, sums, 0, 1, 0.0) if norm is None else (norm.squares, norm.before, norm.parts, norm.size, norm.eps)
    )
    _matmul[(cut.tiles, cut.SPLIT_K)](
        a, sums, *pointers(planes), squares, before, out, workspace.partials, workspace.counters,
        planes.padded_k, planes.padded_n, planes.n, size, eps, P=parts, **plane_constants(planes),
        BN=cut.BN, SPLIT_K=cut.SPLIT_K, STAGES=cut.STAGES, num_warps=cut.num_warps, **every_launch(a.device),
    )  # fmt: skip


def matmul_reference(
    a: Tensor, sums: Tensor, planes: Planes, out: Tensor, workspace: SplitWorkspace, norm: Norm | None = None
) -> None:
    """Do what `matmul` does, in torch and float32; a may be float32."""
    out.copy_(product_reference(a, planes) * norm_factor_reference(norm))


def product_reference(a: Tensor, planes: Planes) -> Tensor:
    """Return float32 a @ W^T for a [16, K] or [T, 16, K], by tiles: torch may sum larger batches in another order."""
    if planes.scaling == "product":
        return planes.base[: a[..., 0].numel(), : planes.n].view(*a.shape[:-1], planes.n)
    if a.ndim == 3:
        return torch.stack([product_reference(tile, planes) for tile in a])
    return a[:, : planes.k].float() @ planes.dense.T
