"""Attention of 16 tokens ("rows") over the KV cache of one sequence: flash decoding, split over the context.

A slot is one token's entry in the cache. Row t is at slot start + t, which is its position. Masks:

* "chain": a row attends to slots up to its own, as in the target and in causal layers of a drafter.
* "block": a row attends to every slot up to that of row `block` - 1, as in bidirectional layers of a drafter.

A window W limits row t of a "chain" to positions above start + t - W, of a "block" to positions less than W away.

The context is cut into chunks at absolute positions, with one program per chunk and KV head, for all rows and the G
query heads that share the KV head. So a row's sums have one order for any number of valid rows and launched programs,
and a verified row has the bits of autoregressive decoding. Chunks grow with the position, because reading the partial
results of many small chunks would take half of the time at 16k tokens on an H100. The cache holds only finite values
(see `kv_cache`), so that a slot with weight zero adds nothing; slots after that of row 15 are never read.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda import launch
from localdflash.kernels.cuda.kv_cache import Cache, decode
from localdflash.kernels.cuda.launch import ASM, Kernel, every_launch, release, wait

Mask = Literal["chain", "block"]
ROWS = 16
CHUNK = 256  # slots of each of the first DOUBLED chunks; determines the order of summation
DOUBLED, QUADRUPLED = 16, 24  # first chunks with 512 and with 1024 slots, at 4,096 and 8,192 tokens
FIRST_DOUBLED, FIRST_QUADRUPLED = tl.constexpr(DOUBLED), tl.constexpr(QUADRUPLED)
TILE = 64  # slots per loop iteration; divides CHUNK
PART = tl.constexpr(64)  # columns of V per matrix product; ptxas 12.8 miscompiles 32 for a Hopper
BUCKETS = (8, 24, 48, 144)  # chunks per launch, one graph for each: 2,048, 8,192, 32,768 and 131,072 slots
FUSED = 8  # up to this many chunks, the last program to finish merges; above, a second launch merges
LOG2_E = 1.4426950408889634

# Convert four int8 codes ($2) to float16 ($0, $1) without integer-to-float conversions: a code c with its sign bit
# flipped is c + 128, and as the low byte of 1024.0 (0x6400) gives 1152 + c.
HALVES_OF_INT8 = tl.constexpr("""{
    .reg .b32 codes, low, high, bias;
    mov.b32 bias, 0x64806480;
    xor.b32 codes, $2, 0x80808080;
    prmt.b32 low, codes, 0x64646464, 0x4140;
    prmt.b32 high, codes, 0x64646464, 0x4342;
    sub.rn.f16x2 $0, low, bias;
    sub.rn.f16x2 $1, high, bias;
}""")
HALVES_OF_E4M3 = tl.constexpr("""{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")


def slots_of(chunks: int) -> int:
    """Return the number of slots of the first `chunks` chunks."""
    return CHUNK * (chunks + max(chunks - DOUBLED, 0) + 2 * max(chunks - QUADRUPLED, 0))


def chunks_of(slots: int) -> int:
    """Return the number of chunks that cover `slots` slots."""
    units, quadrupled = triton.cdiv(slots, CHUNK), 2 * QUADRUPLED - DOUBLED
    doubled = max(min(units, quadrupled) - DOUBLED, 0)
    return min(units, DOUBLED) + triton.cdiv(doubled, 2) + triton.cdiv(max(units - quadrupled, 0), 4)


class Scratch:
    """Partial results of chunks, allocated once for the most query heads and chunks, and shared by all layers.

    `partial`: weighted sums of V, float32 [HKV, chunks, 16 G, D]; `stats`: largest score and sum of weights, float32
    [HKV, chunks, 2, 16 G]; both flat. `counter` int32 [heads]: one per KV head, zero between launches.
    """

    def __init__(self, device: torch.device, heads: int, head_dim: int, chunks: int = BUCKETS[-1]) -> None:
        self.partial = torch.empty(chunks * ROWS * heads * head_dim, device=device)
        self.stats = torch.empty(chunks * ROWS * heads * 2, device=device)
        self.counter = torch.zeros(heads, dtype=torch.int32, device=device)


@triton.jit
def _first_slot(chunk, CHUNK: tl.constexpr):
    """Return the first slot of a chunk: `slots_of(chunk)`, on the device."""
    return CHUNK * (chunk + tl.maximum(chunk - FIRST_DOUBLED, 0) + 2 * tl.maximum(chunk - FIRST_QUADRUPLED, 0))


@triton.jit
def _chunk_at(slot, CHUNK: tl.constexpr):
    """Return the chunk that contains a slot."""
    unit = slot // CHUNK
    FROM: tl.constexpr = 2 * FIRST_QUADRUPLED - FIRST_DOUBLED  # the unit at which chunk FIRST_QUADRUPLED begins
    wide = tl.maximum(tl.minimum(unit, FROM) - FIRST_DOUBLED, 0) // 2
    return tl.minimum(unit, FIRST_DOUBLED) + wide + tl.maximum(unit - FROM, 0) // 4


@triton.jit
def _exp2(x, ASM: tl.constexpr):
    """Return 2**x, or 0 for subnormal results, whose handling would cost three more instructions."""
    if ASM:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def _halves(codes, ASM: tl.constexpr):
    """Convert K or V as stored to float16. The assembly is declared impure: a tile is converted once, not per warp."""
    if codes.dtype == tl.int8 and ASM:
        x = tl.inline_asm_elementwise(HALVES_OF_INT8, "=&r,=&r,r", [codes], tl.float16, is_pure=False, pack=4)
    elif codes.dtype == tl.float8e4nv and ASM:
        x = tl.inline_asm_elementwise(HALVES_OF_E4M3, "=&r,=&r,r", [codes], tl.float16, is_pure=False, pack=4)
    else:
        x = codes.to(tl.float16)
    return x


@triton.jit
def _visible(node, t, MASK: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """Return whether row t [M, 1] attends to slot start + node [1, TILE], bool [M, TILE]."""
    if MASK == "chain":
        visible = node <= t
        if WINDOW:
            visible &= node > t - WINDOW
    else:
        visible = (node < BLOCK) & (t >= 0)
        if WINDOW:
            visible &= (node > t - WINDOW) & (node < t + WINDOW)
    return visible


@triton.jit
def _sum_groups(x, R: tl.constexpr, GROUPS: tl.constexpr):
    """Sum groups of 32 of x [R, GROUPS * 32] in pairs: the same bits for any layout of x."""
    low, high = tl.split(tl.reshape(x, (R, GROUPS, 16, 2)))
    low, high = tl.split(tl.reshape(low + high, (R, GROUPS, 8, 2)))
    low, high = tl.split(tl.reshape(low + high, (R, GROUPS, 4, 2)))
    low, high = tl.split(tl.reshape(low + high, (R, GROUPS, 2, 2)))
    low, high = tl.split(low + high)
    return low + high


@triton.jit
def _merge(
    r, head, chunks, live, partial_ptr, stats_ptr, out_ptr, sums_ptr, scale,
    HQ: tl.constexpr, G: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, CHUNKS: tl.constexpr,
    UNROLL: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Merge `live` chunks of rows r [R] in index order; store out and its sums, bit-identical for any R and UNROLL."""
    M: tl.constexpr = 16 * G
    d = tl.arange(0, D)
    row = tl.minimum(r, M - 1)
    stats_ptr += head * chunks * 2 * M + row
    partial_ptr += head * chunks * M * D + row[:, None] * D + d[None, :]
    every = tl.arange(0, CHUNKS)[:, None]
    tops = tl.load(stats_ptr[None, :] + every * 2 * M, mask=every < live, other=-float("inf"), cache_modifier=".cg")
    top = tl.max(tops, 0)
    total = tl.zeros((R,), tl.float32)
    acc = tl.zeros((R, D), tl.float32)
    for first in range(0, live, UNROLL):
        for i in tl.static_range(UNROLL):  # so that loads overlap
            chunk = tl.minimum(first + i, live - 1)
            stats = stats_ptr + chunk * 2 * M
            weight = _exp2((tl.load(stats, cache_modifier=".cg") - top) * scale, ASM)
            weight = tl.where(first + i < live, weight, 0.0)
            total = tl.fma(weight, tl.load(stats + M, cache_modifier=".cg"), total)
            acc = tl.fma(weight[:, None], tl.load(partial_ptr + chunk * M * D, cache_modifier=".cg"), acc)
    out = (acc / total[:, None]).to(tl.float16)
    t = r // G
    q_head = head * G + r % G
    is_row = (r < M)[:, None]
    tl.store(out_ptr + (t * WIDTH + q_head * D)[:, None] + d[None, :], out, mask=is_row)
    group = q_head[:, None] * (D // 32) + tl.arange(0, D // 32)[None, :]
    tl.store(sums_ptr + group * 16 + t[:, None], _sum_groups(out.to(tl.float32), R, D // 32), mask=is_row)


@triton.jit
def attend(
    q, t, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, head, first, last, start, end, scale, HKV: tl.constexpr,
    D: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, MASK: tl.constexpr,
    BLOCK: tl.constexpr, WINDOW: tl.constexpr, SCALED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Attend with queries q [M, D] of rows t [M] to the slots from `first` to `last` - 1 of a KV head.

    Row 0 is at slot `start`; no row attends to slot `end` or later ones. Returns float32 [M]: the largest score and the
    sum of weights 2**(7 + (score - largest) * scale); and float32 [M, 64] twice: the first 64 columns of the weighted
    values, and the others if D is 128.
    """
    d = tl.arange(0, D)
    column = tl.arange(0, PART)
    top = tl.full((M,), -1e30, tl.float32)  # finite, so that a row without visible slots so far gives no NaN
    total = tl.zeros((M,), tl.float32)
    low = tl.zeros((M, PART), tl.float32)
    high = tl.zeros((M, PART), tl.float32)
    for n0 in tl.range(first, last, TILE, num_stages=STAGES):
        n = n0 + tl.arange(0, TILE)
        at = tl.minimum(n, end - 1) * HKV + head  # slots past the end are undefined
        scores = tl.dot(q, _halves(tl.load(k_ptr + at[None, :] * D + d[:, None]), ASM))
        if SCALED:
            scores *= tl.load(k_scale_ptr + at)[None, :]
        if (n0 + TILE > start) | ((WINDOW > 0) & (n0 < end - WINDOW)):  # elsewhere all rows attend to all slots
            visible = _visible(n[None, :] - start, t[:, None], MASK, BLOCK, WINDOW)
            scores = tl.where(visible, scores, -float("inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        fade = _exp2((top - peak) * scale, ASM)
        # Times 2**7, so that the product with a value's scale stays in float16's range. Explicit fma, here and in the
        # merge, so that separately compiled kernels round alike.
        p = _exp2(tl.fma(scores, scale, (7.0 - peak * scale)[:, None]), ASM)
        total = tl.fma(total, fade, tl.sum(p, 1))
        if SCALED:
            p *= tl.load(v_scale_ptr + at)[None, :]
        p16 = p.to(tl.float16)
        values = v_ptr + at[:, None] * D + column[None, :]
        # In parts no wider than high, so that each warp has its own rows and keeps p in registers.
        low = tl.dot(p16, _halves(tl.load(values), ASM), low * fade[:, None])
        if D > PART:
            high = tl.dot(p16, _halves(tl.load(values + PART), ASM), high * fade[:, None])
        top = peak
    return top, total, low, high


@Kernel
@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, start_ptr, partial_ptr, stats_ptr, counter_ptr,
    out_ptr, sums_ptr, scale,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, SCALED: tl.constexpr, FUSED: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute one chunk of one KV head. Grid (HKV, chunks); programs past the end of the context return at once.

    Row r = t * G + g belongs to query head `head * G + g`; there are M rows with padding. The softmax uses powers of
    two: `scale` is log2(e) / sqrt(D).
    """
    G: tl.constexpr = HQ // HKV
    head = tl.program_id(0)
    chunks = tl.num_programs(1)
    r = tl.arange(0, M)
    t = r // G
    d = tl.arange(0, D)
    wait(PDL)
    start = tl.load(start_ptr)
    end = start + 16
    oldest = tl.maximum(start - (WINDOW - 1), 0) if WINDOW else 0  # first slot that any row attends to
    oldest_chunk = _chunk_at(oldest, CHUNK)
    chunk = oldest_chunk + tl.program_id(1)
    begin = _first_slot(chunk, CHUNK)
    if begin >= end:
        return
    first = tl.maximum(begin, oldest // TILE * TILE)
    last = tl.minimum(_first_slot(chunk + 1, CHUNK), end)

    q = tl.load(q_ptr + (t * HQ + head * G + r % G)[:, None] * D + d[None, :], mask=t[:, None] < 16, other=0.0)
    top, total, low, high = attend(q, t, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, head, first, last, start, end, scale,
                                   HKV, D, M, TILE, STAGES, MASK, BLOCK, WINDOW, SCALED, ASM)  # fmt: skip
    release(PDL)

    tile = (head * chunks + tl.program_id(1)) * 16 * G
    partial = partial_ptr + (tile + r)[:, None] * D + tl.arange(0, PART)[None, :]
    is_row = r < 16 * G
    tl.store(partial, low, mask=is_row[:, None])
    if D > PART:
        tl.store(partial + PART, high, mask=is_row[:, None])
    tl.store(stats_ptr + tile * 2 + r, top, mask=is_row)
    tl.store(stats_ptr + tile * 2 + 16 * G + r, total, mask=is_row)
    if FUSED:
        live = _chunk_at(end - 1, CHUNK) + 1 - oldest_chunk
        tl.debug_barrier()  # all threads store before one increments the counter
        if tl.atomic_add(counter_ptr + head, 1, sem="acq_rel", scope="gpu") == live - 1:
            _merge(r, head, chunks, live, partial_ptr, stats_ptr, out_ptr, sums_ptr, scale,
                   HQ, G, D, WIDTH, M, CHUNKS, 2, ASM)  # fmt: skip
            tl.store(counter_ptr + head, 0)


@Kernel
@triton.jit
def merge_kernel(
    start_ptr, partial_ptr, stats_ptr, out_ptr, sums_ptr, scale, chunks,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, WINDOW: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge four rows of one KV head. Grid (HKV, 4 G)."""
    G: tl.constexpr = HQ // HKV
    r = tl.program_id(1) * 4 + tl.arange(0, 4)
    wait(PDL)
    release(PDL)
    start = tl.load(start_ptr)
    oldest = tl.maximum(start - (WINDOW - 1), 0) if WINDOW else 0
    newest_chunk = _chunk_at(start + 15, CHUNK)
    live = newest_chunk + 1 - _chunk_at(oldest, CHUNK)
    _merge(r, tl.program_id(0), chunks, live, partial_ptr, stats_ptr, out_ptr, sums_ptr, scale,
           HQ, G, D, WIDTH, 4, CHUNKS, 8, ASM)  # fmt: skip


def attention(
    q: Tensor,
    cache: Cache,
    start: Tensor,
    out: Tensor,
    sums: Tensor,
    scratch: Scratch,
    mask: Mask,
    block: int = ROWS,
    window: int = 0,
    splits: int = BUCKETS[-1],
) -> None:
    """Attend over one layer's cache, which already holds the block's K and V.

    q float16 [16, HQ, D], D 64 or 128; start int32 [1], the number of tokens before the block; out float16
    [16, >= HQ * D], of which the first HQ * D columns are written; sums float32 [>= HQ * D / 32, 16], of `out` over
    groups of 32. `block`: rows of a "block"; results of later rows are undefined. `window`: positions that a row
    attends to, including its own, or 0. `splits`: chunks to launch, enough for start + 16 and at most those of the
    scratch; the result does not depend on it.
    """
    (_, heads, head_dim), kv_heads = q.shape, cache.k.shape[1]
    if window:
        splits = min(splits, triton.cdiv(window + ROWS - 2, CHUNK) + 1)
    assert splits * ROWS * heads * head_dim <= scratch.partial.numel(), "the scratch is too small"
    options = {"HQ": heads, "HKV": kv_heads, "D": head_dim, "WIDTH": out.shape[1], "CHUNK": CHUNK, "WINDOW": window,
               "CHUNKS": triton.next_power_of_2(splits), "ASM": ASM} | every_launch(q.device)  # fmt: skip
    simple = launch.is_simplest()
    stages = 1 if simple else 3 if launch.multiprocessors(q.device)[1] else 2
    fused = splits <= FUSED and not simple
    rows, scale = triton.next_power_of_2(ROWS * heads // kv_heads), head_dim**-0.5 * LOG2_E
    attention_kernel[(kv_heads, splits)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, start, scratch.partial, scratch.stats,
        scratch.counter, out, sums, scale, M=rows, TILE=TILE, STAGES=stages, MASK=mask, BLOCK=block,
        SCALED=cache.k_scale is not None, FUSED=fused, num_warps=rows // 16, **options,
    )  # fmt: skip
    if not fused:
        merge_kernel[(kv_heads, ROWS * heads // kv_heads // 4)](
            start, scratch.partial, scratch.stats, out, sums, scale, splits, num_warps=4, **options
        )


def attention_reference(
    q: Tensor,
    cache: Cache,
    start: Tensor,
    out: Tensor,
    sums: Tensor,
    scratch: Scratch | None,
    mask: Mask,
    block: int = ROWS,
    window: int = 0,
    splits: int = BUCKETS[-1],
) -> None:
    """Do what `attention` does, in torch and float32, row by row."""
    begin, (rows, heads, head_dim) = int(start), q.shape
    width = heads * head_dim
    for t in range(block if mask == "block" else rows):
        slots = _slots(t, begin, mask, block, window)
        keys = decode(cache.k[slots], None if cache.k_scale is None else cache.k_scale[slots])
        values = decode(cache.v[slots], None if cache.v_scale is None else cache.v_scale[slots])
        grouped = q[t].float().view(keys.shape[1], heads // keys.shape[1], head_dim)  # [HKV, G, D]
        scores = grouped @ keys.permute(1, 2, 0) * head_dim**-0.5  # [HKV, G, n]
        out[t, :width] = (scores.softmax(-1) @ values.transpose(0, 1)).flatten().to(out.dtype)
    sums[: width // 32] = out[:, :width].float().reshape(rows, -1, 32).sum(-1).t()


def _slots(t: int, begin: int, mask: Mask, block: int, window: int) -> slice:
    """Return the slots that row t attends to."""
    position, last = begin + t, begin + (t if mask == "chain" else block - 1)
    if not window:
        return slice(0, last + 1)
    return slice(max(0, position - window + 1), min(last, position + window - 1) + 1)
