"""A matrix of every layout in float16."""

import pytest
import torch

from localdflash.kernels.cuda.dense import dense, dense_reference
from tests.support.random_planes import LAYOUTS, random_planes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_matrix_is_unpacked(layout: str) -> None:
    planes = random_planes(layout, 256, 512)
    got, want = (torch.zeros(planes.padded_k, planes.padded_n).half() for _ in range(2))
    dense(planes, got)
    dense_reference(planes, want)
    assert bool(want.any())
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
