"""What of an example is learned, and how examples stand side by side."""

import torch
import torch.nn.functional as F

from localdflash.lab.train.adapter import AdaptedEmbedding
from localdflash.lab.train.adapter_pass import CHUNK, weighted_loss
from tests.lab.train.tiny_adapters import noisy


def test_loss_and_gradients_are_those_of_the_whole_head() -> None:
    torch.manual_seed(0)
    count = CHUNK + 30
    embedding = AdaptedEmbedding(torch.randn(40, 8), (2, 5, 7), torch.float32)
    noisy([embedding.rows])
    embedding.merge()
    hidden = torch.randn(count, 8, requires_grad=True)
    labels, weights = torch.randint(0, 40, (count,)), torch.rand(count)
    found = weighted_loss(hidden, labels, weights, embedding)

    logits = hidden @ embedding.weight.index_copy(0, torch.tensor((2, 5, 7)), embedding.rows).T
    losses = F.cross_entropy(logits, labels, reduction="none")
    total = (losses * weights).sum()
    torch.testing.assert_close(found.total, total)
    torch.testing.assert_close(found.losses, losses.detach())
    assert torch.equal(found.right, logits.argmax(-1) == labels)
    gradients = (torch.autograd.grad(3 * each, [hidden, embedding.rows]) for each in (found.total, total))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
