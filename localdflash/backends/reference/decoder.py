"""Readable Qwen2, Qwen3, Qwen3-MoE or Llama decoder, for tests and for training.

See arXiv 2407.10671, 2505.09388 and 2407.21783.

`attend(layer, q, k, v)` decides which positions each row (token) attends to, and owns the KV cache, if any.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.models.shapes.decoder_config import DecoderConfig

# (layer, q [B, heads, T, hd], k [B, kv_heads, T, hd], v [B, kv_heads, T, hd]) -> [B, heads, T, hd]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return normed rows [..., size]."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotary(
    positions: Tensor, head_dim: int, theta: float, factors: Sequence[float] = (), magnitude: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotate-half RoPE at integer positions: [T] gives [T, hd], [B, T] gives [B, 1, T, hd].

    `factors` [head_dim / 2] divide the frequencies; `magnitude` scales the result.
    """
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    if factors:
        frequencies = frequencies / torch.tensor(factors, device=positions.device)
    angles = positions.unsqueeze(-1).float() * frequencies
    angles = torch.cat((angles, angles), -1)
    if positions.ndim == 2:
        angles = angles.unsqueeze(1)
    return angles.cos() * magnitude, angles.sin() * magnitude


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to x [..., T, head_dim]."""
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), -1) * sin.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention, with or without a norm per head on q and k."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c, bias = config, config.attention_bias or config.qkv_bias
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, c.hidden_size, bias=c.attention_bias)
        self.q_norm = RMSNorm(self.head_dim, c.rms_norm_eps) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, c.rms_norm_eps) if c.qk_norm else nn.Identity()

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [B, heads, T, hd], k and v [B, kv_heads, T, hd] of x [B, T, H]; q and k are rotated."""
        k, v = self.project_context(x, cos, sin)
        return rotate(self.q_norm(self._split(self.q_proj(x), self.heads)), cos, sin), k, v

    def project_context(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return k and v of `project` alone, which a DFlash drafter needs of its context."""
        k = rotate(self.k_norm(self._split(self.k_proj(x), self.kv_heads)), cos, sin)
        return k, self._split(self.v_proj(x), self.kv_heads)

    def merge(self, heads: Tensor) -> Tensor:
        """Project the outputs of all heads [B, heads, T, hd] to [B, T, H]."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP's output [..., H] for x [..., H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class ExpertMatrices(nn.Module):
    """One matrix per expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, outputs, inputs))


class Experts(nn.Module):
    """SwiGLU MLPs of all experts."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        experts, hidden, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_proj = ExpertMatrices(experts, hidden, inner)
        self.up_proj = ExpertMatrices(experts, hidden, inner)
        self.down_proj = ExpertMatrices(experts, inner, hidden)

    def forward(self, x: Tensor, expert: int) -> Tensor:
        """Return one expert's output [rows, H] for x [rows, H]."""
        inner = F.silu(F.linear(x, self.gate_proj.weight[expert])) * F.linear(x, self.up_proj.weight[expert])
        return F.linear(inner, self.down_proj.weight[expert])


class SparseMLP(nn.Module):
    """Mixture of experts. A row's output bits depend on that row alone, since each expert in use computes all rows."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.experts_per_token, self.normalise = config.num_experts_per_tok, config.norm_topk_prob
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = Experts(config)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and weights [rows, experts_per_token] of the likeliest experts (ties: the lowest ids)."""
        probabilities = self.gate(x).float().softmax(-1)
        ranked = probabilities.sort(dim=-1, descending=True, stable=True)
        weights, ids = ranked.values[:, : self.experts_per_token], ranked.indices[:, : self.experts_per_token]
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return ids, weights.to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture's output [..., H] for x [..., H]."""
        rows = x.flatten(0, -2)
        ids, weights = self.route(rows)
        out = torch.zeros_like(rows)
        for expert in ids.unique().tolist():
            own, rank = (ids == expert).nonzero(as_tuple=True)
            out = out.index_add(0, own, weights[own, rank, None] * self.experts(rows, expert)[own])
        return out.view_as(x)


class Layer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SparseMLP(config) if config.num_experts else MLP(config)

    def forward(self, x: Tensor, index: int, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Return the residual stream [B, T, H] after layer `index`."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        x = x + self.self_attn.merge(attend(index, q, k, v))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Decoder from token ids to hidden states; `logits` applies the head. Weights are not initialised."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        # `nn.Embedding` initialises at random, which on the meta device imports a compiler for 1.6 s.
        embedding = torch.zeros(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(embedding, freeze=False)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, ids: Tensor, positions: Tensor, attend: Attend, taps: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return normed hidden states [B, T, H] of ids [B, T] at positions [T] or [B, T], and the `taps` outputs."""
        c = self.config
        cos, sin = rotary(positions, c.head_dim, c.rope_theta, c.rope_factors)
        x = self.embed_tokens(ids)
        tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, index, cos, sin, attend)
            if index in taps:
                tapped[index] = x
        return self.norm(x), [tapped[t] for t in taps]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of normed hidden states [..., H]."""
        return self.lm_head(hidden)


def causal(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally within the rows, without a KV cache; see `Attend`."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
