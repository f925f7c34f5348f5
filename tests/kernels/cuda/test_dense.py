"""A matrix of every layout in float16."""

import pytest
import torch

from localdflash.kernels.cuda.dense import dense, dense_reference
from tests.support.random_planes import LAYOUTS, random_planes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_matrix_is_unpacked(layout: str) -> None:
    planes = random_planes(layout, 256, 512)
    actual, expected = (torch.zeros(planes.padded_k, planes.padded_n).half() for _ in range(2))
    dense(planes, actual)
    dense_reference(planes, expected)
    assert bool(expected.any())
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)
