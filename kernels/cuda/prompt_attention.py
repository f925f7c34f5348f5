"""Causal attention of a block of prompt tokens over the KV cache of one sequence: flash attention.

A program computes a group of tokens with the G query heads of one KV head, so that it reads K and V once for all of
them. Unlike in `attention`, the context is not split: a block has enough programs.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from localdflash.kernels.cuda import launch
from localdflash.kernels.cuda.attention import LOG2_E, PART, TILE, attend
from localdflash.kernels.cuda.kv_cache import Cache, decode
from localdflash.kernels.cuda.launch import ASM, Kernel, every_launch, release, wait

ROWS, ROWS_OF_SHORT_BLOCKS = 128, 64  # rows per program; a row is a pair of a token and a query head
LONG = 512  # from this block length in tokens, programs of ROWS rows are enough to fill a GPU
PIECE = 512  # slots that the reference decodes at once


@Kernel
@triton.jit
def prompt_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, start_ptr, out_ptr, tokens, scale,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr, SCALED: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (groups of tokens, HKV). Row r = t * G + g belongs to query head `head * G + g` of the group's token t."""
    G: tl.constexpr = HQ // HKV
    head = tl.program_id(1)
    first_token = (tl.num_programs(0) - 1 - tl.program_id(0)) * (M // G)  # the last tokens, which take longest, first
    r = tl.arange(0, M)
    t = r // G
    token = first_token + t
    is_row = (t < M // G) & (token < tokens)
    wait(PDL)
    block = tl.load(start_ptr)
    start = block + first_token
    end = tl.minimum(start + M // G, block + tokens)
    at = (token * HQ + head * G + r % G)[:, None] * D + tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + at, mask=is_row[:, None], other=0.0)
    _, total, low, high = attend(q, t, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, head, 0, end, start, end, scale,
                                 HKV, D, M, TILE, STAGES, "chain", 16, 0, SCALED, ASM)  # fmt: skip
    release(PDL)
    out = out_ptr + (token * WIDTH + (head * G + r % G) * D)[:, None] + tl.arange(0, PART)[None, :]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out, (low / total[:, None]).to(dtype), mask=is_row[:, None])
    if D > PART:
        tl.store(out + PART, (high / total[:, None]).to(dtype), mask=is_row[:, None])


def prompt_attention(q: Tensor, cache: Cache, start: Tensor, out: Tensor) -> None:
    """Attend over one layer's cache, which already holds the K and V of the block.

    q float16 [T, HQ, D], D 64 or 128; start int32 [1], the position of the first of T tokens; out float16
    [T, >= HQ * D], of which the first HQ * D columns are written.
    """
    (tokens, heads, head_dim), kv_heads = q.shape, cache.k.shape[1]
    rows = ROWS if tokens >= LONG else ROWS_OF_SHORT_BLOCKS
    stages = 1 if launch.is_simplest() else 3 if launch.multiprocessors(q.device)[1] else 2
    prompt_attention_kernel[(triton.cdiv(tokens, rows // (heads // kv_heads)), kv_heads)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, start, out, tokens, head_dim**-0.5 * LOG2_E,
        HQ=heads, HKV=kv_heads, D=head_dim, WIDTH=out.shape[1], M=rows, TILE=TILE, STAGES=stages,
        SCALED=cache.k_scale is not None, ASM=ASM, num_warps=rows // 16, **every_launch(q.device),
    )  # fmt: skip


def prompt_attention_reference(q: Tensor, cache: Cache, start: Tensor, out: Tensor) -> None:
    """Do what `prompt_attention` does, in torch; q and out may be float32."""
    end = int(start) + len(q)
    k, v = (
        _floats(codes[:end], scale if scale is None else scale[:end], q.dtype).transpose(0, 1)[None]
        for codes, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale))
    )
    mask = causal_lower_right(len(q), end)
    result = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, attn_mask=mask, enable_gqa=True)
    out[:, : q[0].numel()] = result[0].transpose(0, 1).flatten(1)


def _floats(codes: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return K or V of the cache in `dtype`, without a copy if the cache has this type."""
    if scale is None:
        return codes.to(dtype)
    pieces = zip(codes.split(PIECE), scale.split(PIECE), strict=True)  # float32 takes twice the memory of `dtype`
    return torch.cat([decode(*piece).to(dtype) for piece in pieces])
