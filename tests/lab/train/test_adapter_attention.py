"""Attention within several sequences of one row, against torch's own on each of them."""

import pytest
import torch
import torch.nn.functional as F

from localdflash.lab.train import adapter_attention
from localdflash.lab.train.adapter_attention import within


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
