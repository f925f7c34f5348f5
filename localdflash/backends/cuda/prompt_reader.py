"""Prefill in blocks of 512 tokens: weights as float16 matrices, products by cuBLAS, attention by torch.

A step of 16 tokens is bound by memory bandwidth, a block by arithmetic: `Stack`, which reads 32 tokens at a time, would
unpack every weight 16 times per block. Sums have another order than in a step, so blocks begin at multiples of 512
tokens, and `CudaPair` reuses a cached prefix only where a fresh prompt would have the same bits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from localdflash.backends.cuda.stack import ROWS, Stack, TapRing
from localdflash.backends.cuda.weights import Dense, LayerWeights, TargetWeights
from localdflash.kernels.cuda.kv_cache import Cache, decode
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.qkv import store_heads
from localdflash.kernels.cuda.residual import TAP_SCALE
from localdflash.kernels.cuda.swiglu import SWIGLU_SCALE

BLOCK_TOKENS = 512


class PromptReader:
    """Forward pass of the target over blocks of tokens; writes the KV cache and the drafter's features (taps)."""

    def __init__(
        self, stack: Stack, weights: TargetWeights, cache: Cache, taps: TapRing | None, dtype: torch.dtype
    ) -> None:
        self.block_tokens = BLOCK_TOKENS
        self._stack, self._weights, self._cache, self._taps = stack, weights, cache, taps
        size = max(planes.padded_k * planes.padded_n for layer in weights.layers for planes in _matrices(layer))
        self._dense = torch.empty(size, dtype=dtype, device=weights.final_gain.device)

    def prefill_block(self, ids: Tensor, start: int) -> None:
        """Compute the block of `ids`, int32 [512], whose first token is at position `start`."""
        end, eps = start + self.block_tokens, self._weights.config.rms_norm_eps
        positions = torch.arange(start, end, device=ids.device)
        x = self._embeddings(ids)
        for index, layer in enumerate(self._weights.layers):
            q = self._project(_norm(x, layer.input_gain, eps), index, layer, positions)
            x += self._product(self._attend(q, self._cache.layer(index), end), layer.output)
            if layer.output_bias is not None:
                x += layer.output_bias
            assert isinstance(layer.mlp, Dense)
            both = self._product(_norm(x, layer.mlp_gain, eps), layer.mlp.gate_up)  # [512, 2 F], interleaved
            gate, up = both.unflatten(-1, (-1, 2)).unbind(-1)
            x += self._product(F.silu(gate) * up * SWIGLU_SCALE, layer.mlp.down)
            self._tap(x, index, positions)

    def _embeddings(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the first layer, float32 [512, H]."""
        weights, b = self._weights, self._stack.buffers
        gain, unused = weights.layers[0].input_gain, (b.hidden, b.hidden_sums, b.squares[0])
        x = torch.empty(len(ids), weights.config.hidden_size, device=ids.device)
        for tile_ids, rows in zip(ids.split(ROWS), x.split(ROWS), strict=True):
            eps = weights.config.rms_norm_eps
            self._stack.ops.embed(tile_ids, weights.embedding, gain, rows, *unused, scale=1.0, eps=eps)
        return x

    def _project(self, a: Tensor, index: int, layer: LayerWeights, positions: Tensor) -> Tensor:
        """Return the queries [512, HQ, D] of a layer; write K and V into the cache."""
        c, cache = self._weights.config, self._cache.layer(index)
        q = torch.empty(len(a), c.num_attention_heads, c.head_dim, dtype=self._dense.dtype, device=a.device)
        gains, rope = (layer.q_gain, layer.k_gain), self._weights.rope
        for heads in layer.qkv:
            product = self._product(a, heads.planes)
            if heads.bias is not None:
                product += heads.bias
            store_heads(product, heads.part, *gains, rope, positions, q, cache, c.rms_norm_eps)
        return q

    def _attend(self, q: Tensor, cache: Cache, end: int) -> Tensor:
        """Return the attention of the block's queries over the first `end` slots, [512, HQ * D]."""
        k, v = (
            _floats(codes[:end], scale if scale is None else scale[:end], q.dtype).transpose(0, 1)[None]
            for codes, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale))
        )
        mask = causal_lower_right(len(q), end)
        out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    def _product(self, a: Tensor, planes: Planes) -> Tensor:
        """Return a @ W^T, float32 [512, n]."""
        matrix = self._unpack(planes)
        used = matrix[: planes.k, : planes.n]
        if used.device.type == "cpu":
            return a.float() @ used.float()
        return torch.mm(a.to(used.dtype), used, out_dtype=torch.float32)

    def _unpack(self, planes: Planes) -> Tensor:
        """Return the weights [padded_k, padded_n], valid until the next call."""
        matrix = self._dense[: planes.padded_k * planes.padded_n].view(planes.padded_k, planes.padded_n)
        self._stack.ops.dense(planes, matrix)
        return matrix

    def unpack_all(self) -> None:
        """Unpack every matrix, which launches each kernel of `prefill_block` except those of `embed`."""
        for layer in self._weights.layers:
            for planes in _matrices(layer):
                self._unpack(planes)

    def _tap(self, x: Tensor, index: int, positions: Tensor) -> None:
        """Store a layer's output in the tap ring if the drafter reads that layer."""
        if not self._taps or index not in self._taps.layers:
            return
        ring, column = self._taps.ring, self._taps.layers.index(index) * x.shape[1]
        ring[positions % len(ring), column : column + x.shape[1]] = (x * TAP_SCALE).to(ring.dtype)


def new_reader(
    stack: Stack, weights: TargetWeights, cache: Cache, taps: TapRing | None, dtype: torch.dtype
) -> PromptReader | None:
    """Return a reader; None for mixtures of experts, for FP4 products, and for contexts of one block or less."""
    dense = all(isinstance(layer.mlp, Dense) and layer.mlp.down.scaling != "product" for layer in weights.layers)
    return PromptReader(stack, weights, cache, taps, dtype) if dense and cache.k.shape[1] > BLOCK_TOKENS else None


def _floats(codes: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return cached keys or values as float16 or float32, without a copy if they have that type."""
    if scale is None:
        return codes.to(dtype)
    pieces = zip(codes.split(BLOCK_TOKENS), scale.split(BLOCK_TOKENS), strict=True)  # float32 takes twice the memory
    return torch.cat([decode(*piece).to(dtype) for piece in pieces])


def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def _matrices(layer: LayerWeights) -> list[Planes]:
    """Return the matrices of a layer with a dense MLP."""
    assert isinstance(layer.mlp, Dense)
    return [*(heads.planes for heads in layer.qkv), layer.output, layer.mlp.gate_up, layer.mlp.down]
