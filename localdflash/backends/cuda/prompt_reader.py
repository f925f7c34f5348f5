"""Prefill in blocks of 128 to 512 tokens: weights as float16 matrices, products by cuBLAS, flash attention.

A step of 16 tokens is bound by memory bandwidth, a block by arithmetic: `Stack`, which reads at most two tiles of 16
tokens at once, would unpack every weight 16 times for 512 tokens. Tiles and each size of block sum in different orders,
so their results differ in bits. `CudaPair` therefore reuses a cached prefix only where a fresh prompt would have the
same blocks (`PromptReader.split`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.ops import Ops
from localdflash.backends.cuda.stack import ROWS, Buffers, Mask, Stack, TapRing
from localdflash.backends.cuda.weights import Dense, LayerWeights, TargetWeights
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.rounds import CONTEXT

BLOCK_TOKENS = (512, 256, 128)  # sizes of blocks; fewer tokens are cheaper in tiles
PRODUCTS = ("qkv", "residual", "swiglu")  # operations that begin with a matrix product


class BlockStack(Stack):
    """The target's layers over a block of tokens, with the kernels of a step except for products and attention."""

    def __init__(self, stack: Stack, weights: TargetWeights, cache: Cache, dtype: torch.dtype) -> None:
        tiles = BLOCK_TOKENS[0] // ROWS
        super().__init__(stack.ops, weights.config, weights, cache, stack.shared, stack.live, dtype, tiles)
        matrices, device = [p for layer in weights.layers for p in _matrices(layer)], weights.final_gain.device
        size, width = max(p.padded_k * p.padded_n for p in matrices), max(p.padded_n for p in matrices)
        self._matrix = torch.zeros(size, dtype=dtype, device=device)
        self._product = torch.zeros(BLOCK_TOKENS[0] * width, device=device)

    def begin(self, ops: Ops, tiles: int) -> None:
        """Use these operations, with products computed before them, and the buffers of the first `tiles` tiles."""
        self.ops = replace(ops, **{name: self._after_product(getattr(ops, name)) for name in PRODUCTS})
        self.buffers = self._all.select(slice(tiles))

    def _after_product(self, op: Callable[..., None]) -> Callable[..., None]:
        """Return `op` preceded by its matrix product, which `op` then reads in place of the weights."""

        def run(a: Tensor, sums: Tensor, planes: Planes, *rest: Any, **options: Any) -> None:
            op(a, sums, self._multiply(a, planes), *rest, **options)

        return run

    def _multiply(self, a: Tensor, planes: Planes) -> Planes:
        """Return the product of `a` [T, 16, >= k] and the weights, as planes that are valid until the next call."""
        matrix = self._matrix[: planes.padded_k * planes.padded_n].view(planes.padded_k, planes.padded_n)
        self.ops.dense(planes, matrix)
        rows, used = a.flatten(0, 1)[:, : planes.k], matrix[: planes.k]
        product = self._product[: len(rows) * planes.padded_n].view(len(rows), planes.padded_n)
        if used.device.type == "cpu":
            torch.mm(rows.float(), used.float(), out=product)
        else:
            torch.mm(rows, used, out_dtype=torch.float32, out=product)
        return Planes(planes.n, planes.k, planes.block_words, product, None, "product", product)

    def _attention(self, b: Buffers, cache: Cache, starts: Sequence[Tensor], _mask: Mask, _splits: int) -> None:
        self.ops.prompt_attention(b.q.flatten(0, 1), cache, starts[0], b.attn_out.flatten(0, 1))


class PromptReader:
    """Forward pass of the target over blocks of tokens, into the KV cache and the drafter's features (taps)."""

    def __init__(
        self, stack: Stack, weights: TargetWeights, cache: Cache, taps: TapRing | None, dtype: torch.dtype
    ) -> None:
        self.sizes = BLOCK_TOKENS
        self._masks = [Mask()] * len(weights.layers)
        self._step_stack, self._stack = stack, BlockStack(stack, weights, cache, dtype)
        self._embedding, self._taps = weights.embedding, taps
        self._ids = torch.zeros(BLOCK_TOKENS[0] // ROWS, ROWS, dtype=torch.int32, device=weights.final_gain.device)

    def split(self, tokens: int) -> list[int]:
        """Return the sizes of the blocks that begin a prompt of `tokens` tokens, largest first; tiles read the rest."""
        blocks = list[int]()
        for size in self.sizes:
            blocks += [size] * ((tokens - sum(blocks)) // size)
        return blocks

    def prefill_block(self, tokens: Tensor, state: Tensor, size: int) -> None:
        """Compute `size` of the `tokens`, int32 [slots], from position CONTEXT (in `state`) on."""
        ids = self._ids[: size // ROWS]
        self._step_stack.ops.next_tokens(tokens, state, ids)
        self._stack.begin(self._step_stack.ops, len(ids))
        self._stack.embed(ids.unbind(), self._embedding)
        self._stack.forward((state[CONTEXT : CONTEXT + 1],), self._masks, 0, self._taps)


def new_reader(
    stack: Stack, weights: TargetWeights, cache: Cache, taps: TapRing | None, dtype: torch.dtype
) -> PromptReader | None:
    """Return a reader; None for mixtures of experts, FP4 products, and caches of at most two of the largest blocks."""
    if cache.k.shape[1] <= 2 * BLOCK_TOKENS[0] or not all(isinstance(layer.mlp, Dense) for layer in weights.layers):
        return None
    has_fp4 = any(planes.scaling == "product" for layer in weights.layers for planes in _matrices(layer))
    return None if has_fp4 else PromptReader(stack, weights, cache, taps, dtype)


def _matrices(layer: LayerWeights) -> list[Planes]:
    """Return the matrices of a layer with a dense MLP."""
    assert isinstance(layer.mlp, Dense)
    return [*(heads.planes for heads in layer.qkv), layer.output, layer.mlp.gate_up, layer.mlp.down]
