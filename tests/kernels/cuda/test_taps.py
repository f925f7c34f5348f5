"""Gathered taps, in the interpreter against plain indexing."""

from collections.abc import Callable

import pytest
import torch

from localdflash.kernels.cuda.residual import gather_taps, gather_taps_reference

gathers = pytest.mark.parametrize("gather", [gather_taps, gather_taps_reference])


@gathers
@pytest.mark.parametrize("start", [0, 20, 25, 32, 1001])
@pytest.mark.parametrize(("width", "k"), [(256, 256), (1120, 1152), (50, 64)])
def test_gather_taps(gather: Callable[..., None], start: int, width: int, k: int) -> None:
    torch.manual_seed(start)
    ring = torch.randn(32, width).half()
    a, sums = torch.zeros(16, k).half(), torch.full((k // 32, 16), float("nan"))
    gather(ring, torch.tensor([start], dtype=torch.int32), a, sums)
    want = torch.zeros(16, k, dtype=torch.float64)
    for m in range(16):
        want[m, :width] = ring[(start + m) % 32].double()
    assert torch.equal(a.double(), want)
    torch.testing.assert_close(sums.double(), want.view(16, -1, 32).sum(-1).t(), rtol=1e-5, atol=1e-5)


@gathers
def test_dead_rows_do_not_reach_live_ones(gather: Callable[..., None]) -> None:
    ring = torch.randn(32, 96).half()
    ring[14:30] = float("nan")
    a, sums = torch.zeros(16, 128).half(), torch.zeros(4, 16)
    gather(ring, torch.tensor([10], dtype=torch.int32), a, sums)
    assert torch.equal(a[:4, :96], ring[10:14])
    assert sums[:, :4].isfinite().all()
    assert a[4:, :96].isnan().all()


def test_reference_takes_float32() -> None:
    ring = torch.randn(20, 64)
    a, sums = torch.zeros(16, 64), torch.zeros(2, 16)
    gather_taps_reference(ring, torch.tensor([7], dtype=torch.int32), a, sums)
    assert torch.equal(a[13:], ring[:3])
