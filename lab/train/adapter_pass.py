"""One pass over several concatenated examples: the ids, the positions whose next id is learned, and the loss."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localdflash.lab.train.adapter import AdaptedEmbedding
from localdflash.lab.train.adapter_data import FimExample

CHAT_WEIGHT = 0.2  # loss weight of an id of a chat answer, since answers are long and FIM middles are short
CHUNK_ROWS = 128  # rows whose logits are in memory at the same time


@dataclass(frozen=True)
class Pass:
    """Concatenated examples, and the labels (next ids) of the N positions that are learned."""

    ids: Tensor  # [T]
    positions: Tensor  # [T], from 0 in each example
    lengths: Sequence[int]
    label_rows: Tensor  # [N], indices into `ids`
    labels: Tensor  # [N]
    weights: Tensor  # [N]
    middle: Tensor  # [N] bool, whether the label belongs to a FIM middle

    @classmethod
    def of(cls, examples: Sequence[FimExample], device: str) -> Self:
        """Concatenate examples on a device; ids of a middle have the weight 1, ids of a prompt 0."""
        weights = np.concatenate([_weights(example) for example in examples])
        middle = np.concatenate([_is_middle(example) for example in examples])
        ids = np.concatenate([example.ids for example in examples])
        positions = np.concatenate([np.arange(len(example.ids)) for example in examples])
        label_rows = np.flatnonzero(weights)
        lengths = [len(example.ids) for example in examples]
        labelled = label_rows, np.roll(ids, -1)[label_rows], weights[label_rows], middle[label_rows]
        first, second, *others = (torch.from_numpy(x).to(device) for x in (ids, positions, *labelled))
        return cls(first, second, lengths, *others)


def _weights(example: FimExample) -> NDArray[np.float32]:
    """Return the weight of each position's next id [T]; the last position has none."""
    weights = np.zeros(len(example.ids), np.float32)
    weights[example.prompt - 1 : -1] = CHAT_WEIGHT if example.kind == "chat" else 1.0
    return weights


def _is_middle(example: FimExample) -> NDArray[np.bool_]:
    """Return whether each position's next id belongs to a FIM middle [T]."""
    return (np.arange(1, len(example.ids) + 1) >= example.prompt) & (example.kind != "chat")


def group_examples(examples: Sequence[FimExample], most: int) -> Iterator[list[FimExample]]:
    """Yield consecutive examples in groups of at most `most` ids; a longer example is a group by itself."""
    group, count = list[FimExample](), 0
    for example in examples:
        if group and count + len(example.ids) > most:
            yield group
            group, count = [], 0
        group.append(example)
        count += len(example.ids)
    if group:
        yield group


class PassLoss(NamedTuple):
    """Loss of a pass."""

    total: Tensor  # weighted sum, the only field with a gradient
    losses: Tensor  # [N] cross-entropy, nats
    is_exact: Tensor  # [N] bool, whether the label is the likeliest id


def weighted_loss(hidden: Tensor, labels: Tensor, weights: Tensor, embedding: AdaptedEmbedding) -> PassLoss:
    """Return the loss of hidden states [N, H], whose next ids are `labels`.

    Only `CHUNK_ROWS` rows of logits exist at a time, since the gradient is computed together with the loss.
    """
    return PassLoss(*_Loss.apply(hidden, labels, weights, embedding.head, embedding.rows, embedding.tokens))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, labels: Tensor, weights: Tensor, head: Tensor, rows: Tensor, tokens: Tensor
    ) -> tuple[Tensor, ...]:
        narrow = hidden.to(head.dtype)
        losses, is_exact = torch.empty_like(weights), torch.empty_like(labels, dtype=torch.bool)
        grad_hidden, grad_rows = torch.empty_like(hidden), torch.zeros_like(rows)
        for start in range(0, len(labels), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            logits = (narrow[part] @ head.T).float()  # [n, V]
            is_exact[part] = logits.argmax(-1) == labels[part]
            gradient = logits.log_softmax(-1)
            at = torch.arange(len(gradient), device=labels.device), labels[part]
            losses[part] = -gradient[at]
            gradient.exp_()
            gradient[at] -= 1
            gradient *= weights[part, None]
            grad_rows += gradient[:, tokens].T @ hidden[part].float()
            grad_hidden[part] = (gradient.to(head.dtype) @ head).to(hidden.dtype)
        ctx.save_for_backward(grad_hidden, grad_rows)
        ctx.mark_non_differentiable(losses, is_exact)
        return (losses * weights).sum(), losses, is_exact

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_rows = ctx.saved_tensors
        return grad_hidden * gradients[0], None, None, None, grad_rows * gradients[0], None
