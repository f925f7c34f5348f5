"""Stack of decoder layers over tiles of 16 rows (tokens of one forward pass), for target and drafter.

A layer takes 5 launches: qkv, attention, residual, swiglu, residual. With convolutions it takes 11. With a mixture of
experts it takes 7: route, gate and up, down, and combine replace the last two.

RMSNorm, x * gain * rstd(x) with rstd(x) = 1 / sqrt(mean(x^2) + eps), takes no launch. The kernel that writes the
residual stream x stores a = x * gain * rstd(before), where `before` is the stream of the previous norm, and the sums of
x^2. The kernel that reads a multiplies its product by rstd(x) / rstd(before). That keeps a inside float16.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.ops import Ops
from localdflash.backends.cuda.weights import Convolution, DrafterWeights, Mixture, QkvProjection, TargetWeights
from localdflash.kernels.cuda import attention
from localdflash.kernels.cuda.convolve import Coefficients
from localdflash.kernels.cuda.head import HeadScratch
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.moe import Routing
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.residual import Tap
from localdflash.kernels.cuda.split_k import SplitWorkspace
from localdflash.models.shapes.decoder_config import DecoderConfig

ROWS = 16  # rows of a tile; a step computes one tile, with and without a draft, a prompt more
WIDTH_ALIGN = 128  # buffer widths are multiples of this


@dataclass(frozen=True)
class SharedBuffers:
    """Scratch memory of reductions over programs, shared by target and drafter."""

    workspace: SplitWorkspace
    scratch: attention.Scratch
    head_scratch: HeadScratch


@dataclass(frozen=True)
class Mask:
    """Attention mask; see localdflash.kernels.cuda.attention. `window` 0: no window."""

    kind: str = "chain"  # or "block"
    block: int = ROWS
    window: int = 0


@dataclass(frozen=True)
class TapRing:
    """Ring buffer of the target's features (taps) for the drafter: hidden states / 16, in row position % length."""

    ring: Tensor  # [length, n_taps * H]
    layers: tuple[int, ...]  # 0-based ids of the layers whose output is stored


class MixtureBuffers:
    """Routing and activations of a mixture of experts, for every expert that may be active."""

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        c = config
        self.routing = Routing(c.num_experts, c.num_experts_per_tok, device)
        width = padded(c.moe_intermediate_size)
        self.mlp = torch.zeros(self.routing.slots, ROWS, width, device=device, dtype=dtype)
        self.sums = torch.zeros(self.routing.slots, width // 32, ROWS, device=device)
        self.out = torch.zeros(ROWS, c.num_experts_per_tok, c.hidden_size, device=device)


class ConvolutionBuffers:
    """Buffers of a sublayer with convolutions over its rows; see kernels/cuda/convolve.py."""

    def __init__(self, convolution: Convolution, device: torch.device, dtype: torch.dtype) -> None:
        hidden = convolution.base.shape[2]
        self.delta = torch.zeros(ROWS, convolution.projection.n, device=device)  # per row, added to the base
        self.a, self.sums = activations(hidden, device, dtype)
        self.out = torch.zeros(ROWS, hidden, device=device)

    def coefficients(self, convolution: Convolution) -> Coefficients:
        """Return the coefficients of a sublayer, with the deltas that were computed last."""
        return Coefficients(convolution.base, self.delta, convolution.group)


class Buffers:
    """Activations [tiles, ...] of one stack, at fixed addresses for CUDA graphs; convolutions and experts: one tile."""

    def __init__(
        self,
        config: DecoderConfig,
        convolution: Convolution | None,
        device: torch.device,
        dtype: torch.dtype,
        tiles: int,
    ) -> None:
        c = config
        self.convolution = ConvolutionBuffers(convolution, device, dtype) if convolution else None
        attention_width, layers = c.num_attention_heads * c.head_dim, c.num_hidden_layers
        self.x = torch.zeros(tiles, ROWS, c.hidden_size, device=device)
        self.hidden, self.hidden_sums = activations(c.hidden_size, device, dtype, tiles)
        self.q = torch.zeros(tiles, ROWS, c.num_attention_heads, c.head_dim, device=device, dtype=dtype)
        self.attn_out, self.attn_out_sums = activations(attention_width, device, dtype, tiles)
        self.mixture = MixtureBuffers(c, device, dtype) if c.num_experts else None
        self.mlp, self.mlp_sums = activations(0 if c.num_experts else c.intermediate_size, device, dtype, tiles)
        # Sums of squares of the residual stream, before each of the 2 L + 1 norms.
        squares = torch.zeros(2 * layers + 1, tiles, padded(c.hidden_size) // WIDTH_ALIGN, ROWS, device=device)
        self.squares = squares.unbind()

    def select(self, tiles: int | slice) -> "Buffers":
        """Return views of one tile (without the axis of tiles), or of some tiles."""
        selected = copy(self)
        for name in ("x", "hidden", "hidden_sums", "q", "attn_out", "attn_out_sums", "mlp", "mlp_sums"):
            setattr(selected, name, getattr(self, name)[tiles])
        selected.squares = tuple(squares[tiles] for squares in self.squares)
        return selected


def padded(size: int) -> int:
    """Return a width rounded up to a multiple of WIDTH_ALIGN; the padding of buffers stays zero."""
    return -(-size // WIDTH_ALIGN) * WIDTH_ALIGN


def activations(size: int, device: torch.device, dtype: torch.dtype, *tiles: int) -> tuple[Tensor, Tensor]:
    """Return zeroed buffers for a GEMM's input [*tiles, 16, size], padded, and its sums over groups of 32 columns."""
    width = padded(size)
    a = torch.zeros(*tiles, ROWS, width, device=device, dtype=dtype)
    return a, torch.zeros(*tiles, width // 32, ROWS, device=device)


class Stack:
    """Layers with their KV caches; `forward` leaves the result in `buffers.hidden`, to be read with `final_norm`."""

    def __init__(
        self,
        ops: Ops,
        config: DecoderConfig,
        weights: TargetWeights | DrafterWeights,
        cache: Cache,
        shared: SharedBuffers,
        live: Tensor,
        dtype: torch.dtype,
        tiles: int = 1,
    ) -> None:
        self.live = live  # int32 [1]: number of leading rows whose experts are computed
        self.ops, self.config, self.layers, self.rope = ops, config, weights.layers, weights.rope
        self.caches = [cache.layer(i) for i in range(config.num_hidden_layers)]
        self.shared, layers, final_gain = shared, weights.layers, weights.final_gain
        self._all = Buffers(config, layers[0].attention_conv, final_gain.device, dtype, tiles)
        self._each = [self._all.select(tile) for tile in range(tiles)]
        self.buffers = self._each[0]
        self.next_gains = [*(layer.input_gain for layer in layers[1:]), final_gain]

    def _norm(self, b: Buffers, index: int) -> Norm:
        """Return the norm before sublayer `index`: even for attention, odd for an MLP, the last for the LM head."""
        squares, c = b.squares, self.config
        return Norm(squares[index], squares[max(index - 1, 0)], c.hidden_size, c.rms_norm_eps)

    @property
    def final_norm(self) -> Norm:
        """Return the norm before the LM head."""
        return self._norm(self.buffers, 2 * len(self.layers))

    def embed(self, ids: Sequence[Tensor], table: Planes, scale: float = 1.0) -> None:
        """Write the embeddings of ids, int32 [16] per tile, to the residual stream."""
        gain, eps = self.layers[0].input_gain, self.config.rms_norm_eps
        for tile_ids, b in zip(ids, self._each, strict=False):
            self.ops.embed(tile_ids, table, gain, b.x, b.hidden, b.hidden_sums, b.squares[0], scale=scale, eps=eps)

    def forward(
        self, starts: Sequence[Tensor], masks: Sequence[Mask], splits: int, taps: TapRing | None = None
    ) -> None:
        """Run all layers over the embedded tiles, with a mask per layer. Row m of tile i is at position starts[i] + m.

        Tiles are consecutive, so that one launch can compute all of them from starts[0]. Attention reads the KV cache
        in up to `splits` chunks.
        """
        b = self.buffers if len(starts) == 1 else self._all
        for index, mask in enumerate(masks):
            self._attend(b, index, starts, mask, splits)
            self._mlp(b, index, starts, taps)

    def _attend(self, b: Buffers, index: int, starts: Sequence[Tensor], mask: Mask, splits: int) -> None:
        layer, cache = self.layers[index], self.caches[index]
        norm = self._norm(b, 2 * index)
        a, sums, pending_norm = self._enter(b, layer.attention_conv, norm)
        for projection in layer.qkv:
            self.project(a, sums, projection, pending_norm, (layer.q_gain, layer.k_gain), starts[0], b.q, cache)
        self._attention(b, cache, starts, mask, splits)
        operands, gain = (b.attn_out, b.attn_out_sums, layer.output), layer.mlp_gain
        self._leave(b, *operands, layer.attention_conv, gain, norm, b.squares[2 * index + 1], bias=layer.output_bias)

    def _attention(self, _b: Buffers, cache: Cache, starts: Sequence[Tensor], mask: Mask, splits: int) -> None:
        """Attend with the queries of every tile, one after another, in up to `splits` chunks of the cache."""
        for start, tile in zip(starts, self._each, strict=False):
            self.ops.attention(
                tile.q,
                cache,
                start,
                tile.attn_out,
                tile.attn_out_sums,
                self.shared.scratch,
                mask.kind,
                block=mask.block,
                window=mask.window,
                splits=splits,
            )

    def project(
        self,
        a: Tensor,
        sums: Tensor,
        projection: QkvProjection,
        norm: Norm | None,
        gains: tuple[Tensor | None, Tensor | None],
        start: Tensor,
        q: Tensor | None,
        cache: Cache,
    ) -> None:
        """Compute Q, K and V into `q` and `cache`; without `q` only K and V. `gains` belong to the norms of q and k."""
        operands = projection.planes, norm, projection.heads, *gains, self.rope, start, q, cache, self.shared.workspace
        self.ops.qkv(a, sums, *operands, bias=projection.bias, eps=self.config.rms_norm_eps)

    def lm_head(self, planes: Planes, choice: Tensor, logits: Tensor | None, **options: Any) -> None:
        """Write the likeliest token of each row of the first tile to `choice`, and the logits to `logits` if given."""
        b, scratch = self.buffers, self.shared.head_scratch
        self.ops.head(b.hidden, b.hidden_sums, planes, self.final_norm, choice, scratch, logits=logits, **options)

    def _enter(self, b: Buffers, convolution: Convolution | None, norm: Norm) -> tuple[Tensor, Tensor, Norm | None]:
        """Return a sublayer's input, convolved if there is a convolution, its sums, and the norm yet to be applied."""
        ops = self.ops
        if not convolution:
            return b.hidden, b.hidden_sums, norm
        assert b.convolution is not None
        conv, workspace = b.convolution, self.shared.workspace
        ops.matmul(b.hidden, b.hidden_sums, convolution.projection, conv.delta, workspace, norm)
        ops.convolve_in(b.hidden, norm, conv.coefficients(convolution), conv.a, conv.sums)
        return conv.a, conv.sums, None

    def _leave(
        self,
        b: Buffers,
        a: Tensor,
        sums: Tensor,
        planes: Planes,
        convolution: Convolution | None,
        gain: Tensor,
        norm: Norm,
        squares: Tensor,
        tap: Tap | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Add a sublayer's last product to the residual stream; `gain` and `squares` belong to the next norm."""
        ops, workspace = self.ops, self.shared.workspace
        if not convolution:
            ops.residual(
                a, sums, planes, b.x, gain, norm, b.hidden, b.hidden_sums, squares, workspace, tap=tap, bias=bias
            )
            return
        assert b.convolution is not None
        conv = b.convolution
        ops.matmul(a, sums, planes, conv.out, workspace)
        coefficients = conv.coefficients(convolution)
        ops.convolve_out(conv.out, bias, coefficients, b.x, gain, norm, b.hidden, b.hidden_sums, squares)

    def _mlp(self, b: Buffers, index: int, starts: Sequence[Tensor], taps: TapRing | None) -> None:
        layer = self.layers[index]
        mlp, tile_taps = layer.mlp, list[Tap | None]([None] * len(starts))
        if taps and index in taps.layers:
            column = taps.layers.index(index) * self.config.hidden_size
            tile_taps = [Tap(taps.ring, column, start) for start in starts]
        if isinstance(mlp, Mixture):
            for tile, tap in zip(self._each, tile_taps, strict=False):
                self._moe(tile, index, mlp, tap)
            return
        norm = self._norm(b, 2 * index + 1)
        a, sums, pending_norm = self._enter(b, layer.mlp_conv, norm)
        self.ops.swiglu(a, sums, mlp.gate_up, pending_norm, b.mlp, b.mlp_sums, self.shared.workspace)
        operands, gain = (b.mlp, b.mlp_sums, mlp.down), self.next_gains[index]
        self._leave(b, *operands, layer.mlp_conv, gain, norm, b.squares[2 * index + 2], tile_taps[0])

    def _moe(self, b: Buffers, index: int, mlp: Mixture, tap: Tap | None) -> None:
        ops, shared, mixture, norm = self.ops, self.shared, b.mixture, self._norm(b, 2 * index + 1)
        assert mixture is not None
        routing, normalise = mixture.routing, self.config.norm_topk_prob
        ops.route(b.hidden, mlp.router, norm, self.live, routing, shared.workspace, normalise)
        ops.experts_gate_up(b.hidden, b.hidden_sums, mlp.gate_up, norm, routing, mixture.mlp, mixture.sums)
        ops.experts_down(mixture.mlp, mixture.sums, mlp.down, routing, mixture.out)
        ops.combine(
            mixture.out,
            routing,
            b.x,
            self.next_gains[index],
            norm,
            b.hidden,
            b.hidden_sums,
            b.squares[2 * index + 2],
            tap=tap,
        )
