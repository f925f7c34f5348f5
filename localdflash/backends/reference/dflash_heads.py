"""What DSpark and DFlash 2 put on a DFlash drafter, named as in their state dicts.

DSpark (arXiv 2607.05147): the logits of a slot get a bias of low rank that depends on the token before it, and a
confidence head says how likely the target agrees. DFlash 2 (inco.ai/blog/dflash2): convolutions over the rows of a
block around attention and MLP, whose coefficients depend on the row, and a selector that scores a slot's best
candidates by the token before it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.reference.decoder import Attend, Layer
from localdflash.models.shapes.dflash_config import DFlashConfig


class LocalConvolution(nn.Module):
    """Convolutions over the rows of a block, of what goes into a sublayer and of what comes out of it."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden = config.decoder.hidden_size
        self.kernel, self.group = config.conv_kernel, config.conv_group
        self.base_kernel = nn.Parameter(torch.zeros(2, self.kernel, hidden))  # of what goes in, and of what comes out
        self.kernel_projection = nn.Linear(hidden, 2 * self.kernel * (hidden // self.group), bias=False)

    def coefficients(self, x: Tensor) -> Tensor:
        """[2, kernel, B, T, H] for normed rows x [B, T, H]: for each side, and each row back."""
        changes = self.kernel_projection(x).unflatten(-1, (2, self.kernel, -1)).repeat_interleave(self.group, -1)
        return changes.movedim((-3, -2), (0, 1)) + self.base_kernel[:, :, None, None]

    def forward(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """[B, T, H] of rows x [B, T, H], by the coefficients [kernel, B, T, H] of one side; before them are zeros."""
        out = x * coefficients[0]
        for back in range(1, self.kernel):
            out = out + F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] * coefficients[back]
        return out


class ConvolvedLayer(Layer):
    """A layer of DFlash 2."""

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
    """How likely tokens become, or unlikely, behind another one."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding.from_pretrained(
            torch.zeros(config.decoder.vocab_size, config.markov_rank), freeze=False
        )
        self.markov_w2 = nn.Linear(config.markov_rank, config.proposed, bias=False)

    def forward(self, before: Tensor) -> Tensor:
        """Return what is added to the logits of a slot [V], of the embedding [rank] of the token before it."""
        return self.markov_w2(before)


class ConfidenceHead(nn.Module):
    """How likely it is that the target agrees with a slot, if it agrees with those before."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.decoder.hidden_size + config.markov_rank, 1)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Return a probability, of a slot's hidden state [H] and the embedding [rank] of the token before it."""
        return torch.sigmoid(self.proj(torch.cat((hidden, before)))[0])


class CandidateSelector(nn.Module):
    """How well candidates go with the token before them, at a slot."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        vocabulary, rank = config.decoder.vocab_size, config.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.hidden_projection = nn.Linear(config.decoder.hidden_size, rank, bias=False)

    def forward(self, hidden: Tensor, before: int, candidates: Tensor) -> Tensor:
        """Scores [k] of candidates [k] behind the token `before`, at a slot of hidden state [H]."""
        wanted = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        return self.successor_codebook[candidates] @ wanted
