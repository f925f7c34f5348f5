"""The loss of a few positions over a large vocabulary: logits exist for a chunk of rows at a time, and never twice.

The gradient is computed along with the loss, so the head is read twice in all; of the head itself only the trained
rows get one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from localdflash.lab.train.adapter import AdaptedEmbedding

CHUNK = 128  # rows


class Found(NamedTuple):
    """The weighted sum, which has a gradient; each row's cross-entropy, and whether its label is the likeliest id."""

    total: Tensor
    losses: Tensor  # [N], nats
    right: Tensor  # [N], bool


def weighted_loss(hidden: Tensor, labels: Tensor, weights: Tensor, embedding: AdaptedEmbedding) -> Found:
    """The loss of hidden states [N, H], whose next ids are `labels`."""
    return Found(*_Loss.apply(hidden, labels, weights, embedding.head, embedding.rows, embedding.tokens))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, labels: Tensor, weights: Tensor, head: Tensor, rows: Tensor, tokens: Tensor
    ) -> tuple[Tensor, ...]:
        narrow = hidden.to(head.dtype)
        losses, right = torch.empty(len(labels)), torch.empty(len(labels), dtype=torch.bool)
        to_hidden, to_rows = torch.empty_like(hidden), torch.zeros_like(rows)
        for start in range(0, len(labels), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (narrow[part] @ head.T).float()  # [n, V]
            right[part] = logits.argmax(-1) == labels[part]
            gradient = logits.log_softmax(-1)
            at = torch.arange(len(gradient)), labels[part]
            losses[part] = -gradient[at]
            gradient.exp_()
            gradient[at] -= 1
            gradient *= weights[part, None]
            to_rows += gradient[:, tokens].T @ hidden[part].float()
            to_hidden[part] = (gradient.to(head.dtype) @ head).to(hidden.dtype)
        ctx.save_for_backward(to_hidden, to_rows)
        ctx.mark_non_differentiable(losses, right)
        return (losses * weights).sum(), losses, right

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_rows = ctx.saved_tensors
        return to_hidden * gradients[0], None, None, None, to_rows * gradients[0], None
