"""Network of a DFlash drafter (arXiv 2602.06036): a short Qwen3 stack that fills a block of masked slots in one pass.

The target's features become KV cache entries once per committed token. Slot 0 holds the newest token. DSpark (arXiv
2607.05147) adds a low-rank bias by the previous token, and a confidence head. DFlash 2 (inco.ai/blog/dflash2) adds
convolutions over a block's rows around attention and MLP, and a selector that scores candidates by the previous token.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.reference.decoder import Attend, Layer, RMSNorm, rotary
from localdflash.models.shapes.dflash_config import DFlashConfig


class LocalConvolution(nn.Module):
    """Convolutions over the rows (slots) of a block, one before a sublayer and one after it, called its two sides."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden = config.decoder.hidden_size
        self.kernel, self.group = config.conv_kernel, config.conv_group
        self.base_kernel = nn.Parameter(torch.zeros(2, self.kernel, hidden))  # before and after the sublayer
        self.kernel_projection = nn.Linear(hidden, 2 * self.kernel * (hidden // self.group), bias=False)

    def coefficients(self, x: Tensor) -> Tensor:
        """Return the coefficients [2, kernel, B, T, H] for normed rows x [B, T, H], by side and distance in rows."""
        changes = self.kernel_projection(x).unflatten(-1, (2, self.kernel, -1)).repeat_interleave(self.group, -1)
        return changes.movedim((-3, -2), (0, 1)) + self.base_kernel[:, :, None, None]

    def forward(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """Convolve rows x [B, T, H], padded with zeros, by the coefficients [kernel, B, T, H] of one side."""
        out = x * coefficients[0]
        for back in range(1, self.kernel):
            out = out + F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] * coefficients[back]
        return out


class ConvolvedLayer(Layer):
    """Layer of DFlash 2, with convolutions before and after attention and MLP."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config.decoder)
        self.attention_conv, self.mlp_conv = LocalConvolution(config), LocalConvolution(config)

    def forward(self, x: Tensor, index: int, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """See `Layer`."""
        normed = self.input_layernorm(x)
        before, after = self.attention_conv.coefficients(normed)
        q, k, v = self.self_attn.project(self.attention_conv(normed, before), cos, sin)
        x = x + self.attention_conv(self.self_attn.merge(attend(index, q, k, v)), after)
        normed = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.coefficients(normed)
        return x + self.mlp_conv(self.mlp(self.mlp_conv(normed, before)), after)


class MarkovHead(nn.Module):
    """Low-rank bias of the logits by the previous token (DSpark)."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding.from_pretrained(
            torch.zeros(config.decoder.vocab_size, config.markov_rank), freeze=False
        )
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocab_size, bias=False)

    def forward(self, before: Tensor) -> Tensor:
        """Return the bias of a slot's logits [V] for the embedding [rank] of the previous token."""
        return self.markov_w2(before)


class ConfidenceHead(nn.Module):
    """Head that predicts whether the target accepts a slot, given that it accepted the slots before (DSpark)."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.decoder.hidden_size + config.markov_rank, 1)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Return a probability for a slot's hidden state [H] and the embedding [rank] of the previous token."""
        return torch.sigmoid(self.proj(torch.cat((hidden, before)))[0])


class CandidateSelector(nn.Module):
    """Head that scores a slot's candidates by the previous token (DFlash 2)."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        vocabulary, rank = config.decoder.vocab_size, config.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.hidden_projection = nn.Linear(config.decoder.hidden_size, rank, bias=False)

    def forward(self, hidden: Tensor, before: int, candidates: Tensor) -> Tensor:
        """Return the scores [k] of candidates [k] after the token `before`, at a slot with hidden state [H]."""
        query = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        return self.successor_codebook[candidates] @ query


ContextKV = list[tuple[Tensor, Tensor]]  # per layer: k and v [B, kv_heads, T, hd]


class DFlash(nn.Module):
    """Network of a drafter; parameters are named as in z-lab's state dicts."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        c = config.decoder
        self.fc = nn.Linear(len(config.taps) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList(
            ConvolvedLayer(config) if config.conv_kernel else Layer(c) for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding.from_pretrained(torch.zeros(c.vocab_size, c.hidden_size), freeze=False)
        if config.own_head:
            self.lm_head = nn.Linear(c.hidden_size, config.draft_vocab_size, bias=False)
        if config.markov_rank:
            self.markov_head = MarkovHead(config)
        if config.has_confidence_head:
            self.confidence_head = ConfidenceHead(config)
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(config)

    def fuse(self, features: Tensor) -> Tensor:
        """Return the fused features [B, T, H] of committed tokens, from features [B, T, n_taps * H]."""
        return self.hidden_norm(self.fc(features))

    def context(self, features: Tensor, positions: Tensor) -> ContextKV:
        """Return each layer's KV cache entries of committed tokens, from features [B, T, n_taps * H] at positions."""
        fused = self.fuse(features)
        cos, sin = self._rotary(positions)
        return [cast(Layer, layer).self_attn.project_context(fused, cos, sin) for layer in self.layers]

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        c = self.config.decoder
        return rotary(positions, c.head_dim, c.rope_theta, c.rope_factors, c.rope_magnitude)

    def forward(self, block: Tensor, positions: Tensor, context: ContextKV, masks: Sequence[Tensor | None]) -> Tensor:
        """Return normed hidden states [B, T, H] of block embeddings [B, T, H]; masks are [T, context + T] or None."""
        cos, sin = self._rotary(positions)
        x = block * self.config.embedding_scale

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys = torch.cat((context[layer][0], k), 2)
            values = torch.cat((context[layer][1], v), 2)
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=masks[layer], enable_gqa=True)

        for index, layer in enumerate(self.layers):
            x = layer(x, index, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """Return the logits [..., V] of normed hidden states by a head [V, H]."""
        logits = F.linear(hidden, head) * self.config.logit_scale
        return torch.tanh(logits / self.config.softcap) * self.config.softcap if self.config.softcap else logits


def block_mask(config: DFlashConfig, layer: int, start: int, rows: int, context: Tensor) -> Tensor | None:
    """Return a block's mask [rows, C + rows] over context keys at positions [C] and its own keys; None: sees all."""
    sliding, causal = config.is_sliding(layer), config.is_causal(layer)
    if not sliding and not causal:
        return None
    query = torch.arange(start, start + rows).unsqueeze(1)  # [T, 1]
    key = torch.cat((context, torch.arange(start, start + rows))).unsqueeze(0)  # [1, C + T]
    visible = torch.ones(rows, key.shape[1], dtype=torch.bool)
    if sliding:
        assert config.window is not None
        visible &= key > query - config.window
        if not causal:
            visible &= key < query + config.window
    if causal:
        visible &= key <= query
    return visible
