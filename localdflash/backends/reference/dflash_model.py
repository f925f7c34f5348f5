"""The network of a DFlash drafter: a short Qwen3 stack that fills a block of masked slots in one pass; DSpark's and
DFlash 2's parts (`dflash_heads`) where they are there.

It has no embedding and no head of its own, as a rule. The target's tapped hidden states reach it only as keys and
values: fused once per committed token (`fuse`), projected by every layer's own k and v, and put before the block's own.
Slot 0 holds the committed anchor; slot j predicts the token at its own position. Source: arXiv 2602.06036 and z-lab's
checkpoints.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.reference.decoder import Attention, Layer, RMSNorm, rotary
from localdflash.backends.reference.dflash_heads import CandidateSelector, ConfidenceHead, ConvolvedLayer, MarkovHead
from localdflash.models.shapes.dflash_config import DFlashConfig

ContextKV = list[tuple[Tensor, Tensor]]  # per layer: k and v [B, kv_heads, T, hd]


class DFlash(nn.Module):
    """The drafter's weights, named as in z-lab's state dicts."""

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
            self.lm_head = nn.Linear(c.hidden_size, config.proposed, bias=False)
        if config.markov_rank:
            self.markov_head = MarkovHead(config)
        if config.judges:
            self.confidence_head = ConfidenceHead(config)
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(config)

    def context(self, taps: Tensor, positions: Tensor) -> ContextKV:
        """Return the KV cache of committed tokens per layer, from features [B, T, n_taps * H] at positions [T]."""
        fused = self.hidden_norm(self.fc(taps))
        cos, sin = self._rotary(positions)
        return [attention.project_context(fused, cos, sin) for attention in self._attentions()]

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        c = self.config.decoder
        return rotary(positions, c.head_dim, c.rope_theta, c.rope_factors, c.rope_magnitude)

    def _attentions(self) -> Iterator[Attention]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer.self_attn

    def forward(self, block: Tensor, positions: Tensor, context: ContextKV, masks: Sequence[Tensor | None]) -> Tensor:
        """Normed hidden states [B, T, H] of block embeddings [B, T, H] at positions [T].

        masks[layer] is True where a block row may look, [T, context + T], or None where it sees everything.
        """
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
        """[..., V] of normed hidden states, by a head [V, H]."""
        logits = F.linear(hidden, head) * self.config.logit_scale
        return torch.tanh(logits / self.config.softcap) * self.config.softcap if self.config.softcap else logits


def block_mask(config: DFlashConfig, layer: int, start: int, rows: int, context: Tensor) -> Tensor | None:
    """What a layer's block rows at start... may see of context keys at positions [C] and of each other; None: all."""
    sliding, causal = config.is_sliding(layer), config.is_causal(layer)
    if not sliding and not causal:
        return None
    query = torch.arange(start, start + rows).unsqueeze(1)  # [T, 1]
    key = torch.cat((context, torch.arange(start, start + rows))).unsqueeze(0)  # [1, C + T]
    seen = torch.ones(rows, key.shape[1], dtype=torch.bool)
    if sliding:
        assert config.window is not None
        seen &= key > query - config.window
        if not causal:
            seen &= key < query + config.window
    if causal:
        seen &= key <= query
    return seen
