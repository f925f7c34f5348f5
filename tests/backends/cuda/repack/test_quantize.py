"""Quantizing float weights: the definition, written out with loops."""

import pytest
import torch

from localdflash.backends.cuda.repack import plane_packing
from localdflash.backends.cuda.repack.plane_packing import quantize


def written_out(weights: torch.Tensor, bits: int) -> torch.Tensor:
    limit = 2 ** (bits - 1) - 1
    result = torch.zeros_like(weights)
    for row in range(weights.shape[0]):
        for start in range(0, weights.shape[1], 128):
            some = weights[row, start : start + 128]
            scale = some.abs().max() / limit
            for i, weight in enumerate(some):
                result[row, start + i] = scale * round(float(weight / scale)) if scale else 0
    return result


@pytest.mark.parametrize(("bits", "k"), [(8, 300), (4, 256)])
def test_definition(bits: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_packing, "CHUNK_WEIGHTS", 1)
    weights = torch.randn(3, k, generator=torch.Generator().manual_seed(bits))
    weights[1, :128] = 0
    planes = quantize(weights, bits)
    assert (planes.n, planes.k, planes.scaling, planes.high_bits) == (3, k, "block", bits - 4)
    assert torch.allclose(planes.dense, written_out(weights, bits), rtol=1e-6, atol=0)


@pytest.mark.parametrize("magnitude", [3.0, 1e-38, 3e-45, 1e38])
def test_extremes_stay_finite(magnitude: float) -> None:
    weights = torch.full((1, 128), magnitude)
    weights[0, 1::2], weights[0, 2::4] = 0, -magnitude
    for bits in (8, 4):
        assert torch.allclose(quantize(weights, bits).dense, weights, rtol=0.01, atol=1e-40)


def test_half_precision() -> None:
    weights = torch.randn(4, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(quantize(weights).dense, quantize(weights.float()).dense)
