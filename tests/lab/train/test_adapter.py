"""Adapters: the products against plain matrices, what has gradients, where a decoder starts from."""

import copy

import pytest
import torch
import torch.nn.functional as F

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.lab.train import adapter_attention
from localdflash.lab.train.adapter import AdaptedEmbedding, AdaptedLinear, Adapter
from localdflash.lab.train.adapter_attention import within
from localdflash.lab.train.adapter_pass import CHUNK, weighted_loss
from localdflash.lab.train.loop import initialise
from tests.lab.train.tiny_adapters import TINY, noisy

TOKENS = (3, 5, 16)


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(TINY)
    initialise(model)
    return model.requires_grad_(False)


def test_a_product_is_that_of_the_merged_matrix_and_so_are_its_gradients() -> None:
    torch.manual_seed(1)
    linear = AdaptedLinear(torch.randn(12, 8), 3, torch.float32)
    noisy([linear.up])
    linear.merge()
    x, back = torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 12)
    found = linear(x)
    plain = F.linear(x, linear.weight) + (x @ linear.down.T) @ linear.up.T
    torch.testing.assert_close(found, plain)
    inputs = [x, linear.down, linear.up]
    for one, other in zip(*(torch.autograd.grad(out, inputs, back) for out in (found, plain)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_decoder_with_adapters_is_the_one_with_merged_weights(model: Decoder) -> None:
    plain = copy.deepcopy(model)
    adapter = Adapter(model, 2, TOKENS, torch.float32)
    noisy(p for _, p in adapter.parameters())
    adapter.merge()
    state = plain.state_dict()
    for name, linear in adapter.linears.items():
        state[f"{name}.weight"] = linear.merged()
    state["embed_tokens.weight"] = state["lm_head.weight"] = adapter.embedding.merged()
    plain.load_state_dict(state)
    ids, positions = torch.tensor([[3, 7, 16, 2, 5, 11]]), torch.arange(6)
    found, _ = model(ids, positions, causal)
    expected, _ = plain(ids, positions, causal)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found @ adapter.embedding.head.T, plain.logits(expected))


@pytest.mark.parametrize("lengths", [[1], [8], [20, 1, 13]])
def test_sequences_attend_as_they_do_alone(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_attention, "BLOCK", 8)
    torch.manual_seed(0)
    ours = [torch.randn(1, heads, sum(lengths), 16, requires_grad=True) for heads in (6, 2, 2)]
    back = torch.randn(1, 6, sum(lengths), 16)
    found = within(lengths)(0, *ours)
    parts = zip(*(torch.split(each, lengths, 2) for each in ours), strict=True)
    expected = torch.cat(
        [F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in parts], 2
    )
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(out, ours, back) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


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
