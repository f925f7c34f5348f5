"""The dequantizing kernel against the definition of planes: the same bits."""

import pytest
import torch

from localdflash.kernels.dequantize import dequantize, dequantize_reference
from localdflash.kernels.planes import Planes
from localdflash.weights.packing import Layout, Rows, empty, fill

LAYOUTS = {
    "int4": Layout(rows=32, high_bits=0, scaling="block", zero=8),
    "int4 with minimum": Layout(rows=32, high_bits=0, scaling="block", zero=8, has_minimum=True),
    "int8": Layout(rows=32, high_bits=4, scaling="block", zero=128),
    "fp8": Layout(rows=32, high_bits=4, scaling="block", code="e4m3"),
    "Q4_0": Layout(rows=32, high_bits=0, scaling="half4", zero=8),
    "Q8_0": Layout(rows=32, high_bits=4, scaling="half4", zero=128),
    "MXFP4": Layout(rows=32, high_bits=0, scaling="half4", code="e2m1"),
    "NVFP4": Layout(rows=16, high_bits=0, scaling="half4", code="e2m1"),
    "Q4_K": Layout(rows=32, high_bits=0, scaling="byte4", has_minimum=True),
    "Q5_K": Layout(rows=32, high_bits=2, scaling="byte4", has_minimum=True),
    "Q6_K": Layout(rows=16, high_bits=2, scaling="byte4", zero=32),
}


def random_planes(layout: Layout, n: int, k: int, experts: int = 1) -> Planes:
    """Planes with every code and sub-scale at random, signed scales, and groups of different sizes."""
    generator = torch.Generator().manual_seed(n + k)
    group = 4 * layout.rows if layout.scaling == "block" else layout.rows

    def byte_groups(low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, (n, k // group), generator=generator).to(dtype)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.01

    def rows(_: slice) -> Rows:
        codes = torch.randint(0, 2 ** (4 + layout.high_bits), (n, k), generator=generator).to(torch.uint8)
        if layout.code == "e4m3":
            codes[(codes & 127) == 127] = 0  # NaN
        if layout.scaling == "byte4":
            signed = byte_groups(-128, 128, torch.int8) if layout.rows == 16 else byte_groups(0, 256, torch.uint8)
            return Rows(codes, signed, byte_groups(0, 256, torch.uint8), floats(n, k // 256, 2).half())
        scale, minimum = floats(n, k // group), floats(n, k // group)
        return Rows(codes, scale.half() if layout.scaling == "half4" else scale, minimum)

    planes = empty(layout, n, k, experts, torch.device("cpu"))
    for expert in range(experts):
        fill(planes, expert, rows)
    return planes


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("n", "k", "experts"), [(128, 256, 1), (130, 512, 1), (5, 256, 2)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(name: str, n: int, k: int, experts: int, reference: bool) -> None:
    planes = random_planes(LAYOUTS[name], n, k, experts)
    out = torch.full((experts * planes.padded_k, planes.padded_n), torch.nan, dtype=torch.float16)
    (dequantize_reference if reference else dequantize)(planes, out)
    expected = torch.zeros(experts, planes.padded_k, planes.padded_n)
    expected[:, :k, :n] = planes.dense.view(experts, n, k).transpose(1, 2)
    assert expected.any()
    assert torch.equal(out, expected.view_as(out).half())


def test_padding_along_k_is_zero() -> None:
    planes = random_planes(LAYOUTS["Q8_0"], 128, 160)
    out = torch.full((256, 128), torch.nan, dtype=torch.float16)
    dequantize(planes, out)
    assert torch.equal(out[:160], planes.dense.T.half())
    assert not out[160:].any()


def test_reference_keeps_float32() -> None:
    planes = random_planes(LAYOUTS["Q4_K"], 128, 256)
    out = torch.empty(256, 128)
    dequantize_reference(planes, out)
    assert torch.equal(out, planes.dense.T)
