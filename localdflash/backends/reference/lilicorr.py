"""LiLiCorr head (arXiv 2608.20530): a small transformer over all candidates of a draft block.

Each slot (position of the block) keeps its k likeliest tokens. The head gives every candidate an `in` and an `out`
vector. A candidate's score after a candidate of the previous slot is the scaled cosine of its `in` and that `out`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.reference.decoder import RMSNorm
from localdflash.models.shapes.dflash_config import DFlashConfig, LiLiCorrConfig

FEATURES = 5  # of a candidate: see `describe_candidates`


class CandidateAttention(nn.Module):
    """Attention of every candidate to every candidate; parameters are named as in torch's MultiheadAttention."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return the sublayer's output [L, h] for normed candidates x [L, h]; bias [heads, L, L] is added to scores."""
        split = F.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(1, 2, 0, 3)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(0, 1).flatten(1))


class CandidateLayer(nn.Module):
    """Pre-norm layer of the head: attention, then an MLP without a gate."""

    def __init__(self, head: LiLiCorrConfig, eps: float) -> None:
        super().__init__()
        size = head.hidden_size
        self.attn_norm, self.mlp_norm = RMSNorm(size, eps), RMSNorm(size, eps)
        self.attn = CandidateAttention(size, head.heads)
        self.mlp = nn.Sequential(nn.Linear(size, head.mlp_size), nn.SiLU(), nn.Linear(head.mlp_size, size))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return the candidates [L, h] after this layer."""
        x = x + self.attn(self.attn_norm(x), bias)
        return x + self.mlp(self.mlp_norm(x))


class LiLiCorrHead(nn.Module):
    """Head that scores pairs of candidates of adjacent slots; parameters are named as in published files."""

    def __init__(self, config: DFlashConfig, head: LiLiCorrConfig) -> None:
        super().__init__()
        self.config = head
        wide, size, eps = config.decoder.hidden_size, head.hidden_size, config.decoder.rms_norm_eps
        self.token_proj = nn.Identity() if wide == size else nn.Linear(wide, size)
        self.pass_hidden_proj = nn.Linear(wide, size)
        self.feature_mlp = nn.Sequential(
            nn.LayerNorm(FEATURES), nn.Linear(FEATURES, size), nn.SiLU(), nn.Linear(size, size)
        )
        self.slot_embedding = nn.Parameter(torch.zeros(1, 1, config.drafts, 1, size))
        self.rank_embedding = nn.Parameter(torch.zeros(1, 1, 1, head.top_k, size))
        self.relative_slot_bias = nn.Parameter(torch.zeros(head.heads, 2 * config.block_size - 1))
        self.same_slot_bias = nn.Parameter(torch.zeros(head.heads))
        self.context_proj = nn.Linear(wide, size)
        self.layers = nn.ModuleList(CandidateLayer(head, eps) for _ in range(head.layers))
        self.output_norm, self.anchor_norm = RMSNorm(size, eps), RMSNorm(size, eps)
        self.factor_input_proj = nn.Linear(3 * size, size)
        self.out_head = nn.Linear(size, head.factor_dim)
        self.in_head = nn.Linear(size, head.factor_dim)
        self.anchor_out_head = nn.Linear(size, head.factor_dim)

    def forward(self, embeddings: Tensor, log_probs: Tensor, hidden: Tensor, anchor: Tensor | None) -> Tensor:
        """Return scores [slots, k, k]: of each candidate (last axis) after each candidate of the previous slot.

        The previous slot of the first slot is the context, so the rows of its scores are equal. `embeddings`
        [slots, k, H] are the target's, `log_probs` [slots, k] the drafter's, the likeliest candidate first; `hidden`
        [slots, H] are the drafter's, `anchor` [H] is the fused feature of the newest token in the context, if any.
        """
        x = self.token_proj(embeddings) + self.pass_hidden_proj(hidden).unsqueeze(1)
        x = x + self.feature_mlp(describe_candidates(log_probs))
        x = (x + self.slot_embedding[0, 0] + self.rank_embedding[0, 0]).flatten(0, 1)
        bias = self._bias()
        for layer in self.layers:
            x = layer(x, bias)
        x = self.output_norm(x)
        context = torch.zeros_like(x[0]) if anchor is None else self.anchor_norm(self.context_proj(anchor))
        factors = F.silu(self.factor_input_proj(torch.cat((x, context.expand_as(x), x * context), -1)))
        incoming = self._unit(self.in_head(factors)).unflatten(0, log_probs.shape)
        outgoing = self._unit(self.out_head(factors)).unflatten(0, log_probs.shape)
        start = self._unit(self.anchor_out_head(context)).expand_as(outgoing[:1])
        return torch.cat((start, outgoing[:-1])) @ incoming.transpose(1, 2) * self.config.scale

    def _bias(self) -> Tensor:
        """Return what is added to attention scores [heads, L, L], by the distance of two candidates' slots."""
        slots, top_k = self.slot_embedding.shape[2], self.config.top_k
        slot = torch.arange(slots).repeat_interleave(top_k)
        distance = slot.unsqueeze(1) - slot  # negative for later slots
        centre = self.relative_slot_bias.shape[1] // 2
        return self.relative_slot_bias[:, distance + centre] + self.same_slot_bias[:, None, None] * (distance == 0)

    def _unit(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1, eps=self.config.vector_eps)


def describe_candidates(log_probs: Tensor) -> Tensor:
    """Return [slots, k, 5]: a candidate's log probability, probability, distance to the best, rank, whether best."""
    rank = torch.arange(log_probs.shape[1])
    columns = (
        log_probs,
        log_probs.exp(),
        log_probs - log_probs[:, :1],
        (rank / max(len(rank) - 1, 1)).expand_as(log_probs),
        (rank == 0).to(log_probs.dtype).expand_as(log_probs),
    )
    return torch.stack(columns, -1)
