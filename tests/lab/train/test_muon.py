import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from localdflash.lab.train.loop import optimizers
from localdflash.lab.train.muon import Muon, orthogonal


@given(
    rows=st.integers(1, 24), columns=st.integers(1, 24), seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 1e4])
)
def test_singular_values_come_close_to_one(rows: int, columns: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(2, rows, columns), full_matrices=False)
    spread = torch.linspace(1.0, 0.1, min(rows, columns))
    result = orthogonal(u * spread @ v * scale)
    found = torch.linalg.svdvals(result)
    assert found.shape == (2, min(rows, columns))
    assert found.min() > 0.6
    assert found.max() < 1.3


def test_one_step_has_the_promised_size_and_decay() -> None:
    torch.manual_seed(0)
    start = torch.randn(32, 8)
    weight = start.clone().requires_grad_()
    weight.grad = torch.randn(32, 8)
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    update = (start * (1 - 0.1 * 0.5) - weight.detach()) / 0.1
    # An orthogonal 32 x 8 matrix has a root mean square of 1/sqrt(32); times 0.2 * sqrt(32) that is 0.2.
    assert update.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


def test_every_parameter_has_exactly_one_optimizer() -> None:
    model = torch.nn.ModuleDict(
        {
            "embed_tokens": torch.nn.Embedding(8, 4),
            "proj": torch.nn.Linear(4, 6, bias=True),
            "norm": torch.nn.LayerNorm(6),
            "lm_head": torch.nn.Linear(6, 8, bias=False),
        }
    )
    muon, adam = optimizers(model, 0.01)
    taken = [p for stepper in (muon, adam) for group in stepper.param_groups for p in group["params"]]
    assert sorted(map(id, taken)) == sorted(map(id, model.parameters()))
    assert [p.shape for group in muon.param_groups for p in group["params"]] == [(6, 4)]
