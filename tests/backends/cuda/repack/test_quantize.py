"""Quantizing float weights: the definition, written out with loops."""

import pytest
import torch

from localdflash.backends.cuda.repack import plane_packing
from localdflash.backends.cuda.repack.plane_packing import quantize


def written_out(weights: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    limit = 2 ** (bits - 1) - 1
    result = torch.zeros_like(weights)
    for row in range(weights.shape[0]):
        for start in range(0, weights.shape[1], group):
            some = weights[row, start : start + group]
            scale = some.abs().max() / limit
            for i, weight in enumerate(some):
                result[row, start + i] = scale * round(float(weight / scale)) if scale else 0
    return result


@pytest.mark.parametrize("k", [256, 300])
@pytest.mark.parametrize(("bits", "group"), [(8, 128), (4, 128), (8, 256)])
def test_definition(bits: int, group: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_packing, "CHUNK_WEIGHTS", 1)
    weights = torch.randn(3, k, generator=torch.Generator().manual_seed(bits))
    weights[1, :128] = 0
    planes = quantize(weights, bits, group)
    assert (planes.n, planes.k, planes.scaling, planes.high_bits) == (3, k, "block", bits - 4)
    assert torch.allclose(planes.dense, written_out(weights, bits, group), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("bits", "limit"), [(8, 127), (4, 7)])
def test_error_is_half_a_step(bits: int, limit: int) -> None:
    weights = torch.randn(200, 384, generator=torch.Generator().manual_seed(0))
    error = (quantize(weights, bits).dense - weights).view(200, 3, 128).abs().amax(-1)
    step = weights.view(200, 3, 128).abs().amax(-1) / limit
    assert (error <= step * 0.5001).all()
    assert (error > step * 0.4).float().mean() > 0.9


def test_extremes_keep_their_value() -> None:
    weights = torch.zeros(2, 128)
    weights[:, 5], weights[:, 6] = 3.0, -3.0
    assert torch.equal(quantize(weights, 8).dense, weights)
    assert torch.equal(quantize(weights, 4).dense, weights)


@pytest.mark.parametrize("magnitude", [1e-38, 3e-45, 1e38])
def test_extreme_magnitudes_stay_finite(magnitude: float) -> None:
    weights = torch.full((1, 128), magnitude)
    weights[0, 1::2] = 0
    dense = quantize(weights).dense
    assert dense.isfinite().all()
    assert torch.allclose(dense, weights, rtol=0.01, atol=1e-40)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    weights = torch.randn(4, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(quantize(weights).dense, quantize(weights.float()).dense)


@pytest.mark.parametrize(("bits", "group"), [(5, 128), (8, 64)])
def test_what_planes_cannot_hold(bits: int, group: int) -> None:
    with pytest.raises(ValueError, match="cannot quantize"):
        quantize(torch.zeros(1, 128), bits, group)
