"""FP4 products against float64 from the definition of the formats.

The interpreter reads e4m3 scales as e8m0. The NVFP4 kernel is therefore compared with the value of these bytes as e8m0,
which checks every address but not the scales' values. Their values are checked in the conversion, in the reference, and
where the kernel runs as compiled (test_races).
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.fp4 import (
    Fp4Matrix,
    Fp4Rows,
    fp4_matmul,
    fp4_matmul_reference,
    fp4_matrix,
    plan,
    quantize_rows_fp4,
    quantize_rows_fp4_reference,
)
from localdflash.kernels.cuda.launch import ASM
from localdflash.kernels.cuda.planes import E2M1, Planes, pack_fields, pack_halves
from localdflash.kernels.cuda.split_k import SplitWorkspace
from tests.support.interpreter import install_dot_scaled

install_dot_scaled()

MXFP4, NVFP4 = 32, 16
FORMATS = pytest.mark.parametrize("group", [MXFP4, NVFP4])
VALUES = torch.tensor(E2M1, dtype=torch.float64)


def random_planes(n: int, k: int, group: int, factor: float = 1.0) -> Planes:
    """Return planes of weights [n, k] with random codes and scales; n and k are padded."""
    columns, depth = -(-n // 128) * 128, -(-k // (4 * group)) * 4 * group
    codes = torch.zeros(depth, columns, dtype=torch.int64)
    codes[:k, :n] = torch.randint(16, (k, n))
    if group == MXFP4:
        scale = torch.exp2(torch.randint(-12, 3, (depth // group, columns)).float())
    else:
        scale = (torch.rand(depth // group, columns) * 400).to(torch.float8_e4m3fn).float() * factor
    scale[:, n:] = 0
    words = scale.half().view(-1, 2, 2, columns)
    packed = pack_halves(words[:, :, 0], words[:, :, 1])
    return Planes(n, k, group, pack_fields(codes, group, 4), None, "half4", packed, code="e2m1")


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """Decode codes [spans, rows, 256] and scales [spans, rows, groups] to float64 [rows, K]."""
    spans, rows, width = codes.shape
    out = torch.empty(rows, spans, width, 2, dtype=torch.float64)
    out[..., 0] = VALUES[(codes % 16).long()].transpose(0, 1)
    out[..., 1] = VALUES[(codes // 16).long()].transpose(0, 1)
    return (out.view(rows, spans * scales.shape[2], -1) * scales.transpose(0, 1).reshape(rows, -1, 1)).flatten(1)


def scale_values(scales: Tensor) -> Tensor:
    """Return the values of scale bytes, float64."""
    if scales.dtype == torch.float8_e4m3fn:
        return scales.double()
    return torch.exp2(scales.double() - 127)


def read(scales: Tensor) -> Tensor:
    """Return the values that the kernel reads from scale bytes."""
    return scale_values(scales) if ASM else torch.exp2(scales.view(torch.uint8).double() - 127)


def bounded(scales: Tensor) -> Tensor:
    """Return scales that stay in range if the interpreter reads them as e8m0."""
    return scales if ASM else torch.randint(120, 126, scales.shape, dtype=torch.uint8).view(scales.dtype)


def quantized(a: Tensor, matrix: Fp4Matrix) -> Fp4Rows:
    rows = Fp4Rows.empty(matrix)
    quantize_rows_fp4(a, rows)
    return rows


def multiply(rows: Fp4Rows, matrix: Fp4Matrix, workspace: SplitWorkspace | None = None) -> Tensor:
    out = torch.full((16, matrix.n), torch.nan)
    fp4_matmul(rows, matrix, out, workspace or SplitWorkspace(out.device, [plan(matrix)]))
    return out


@FORMATS
def test_conversion_is_exact_but_for_the_rounding_of_a_second_scale(group: int) -> None:
    planes = random_planes(200, 700, group)
    assert torch.equal(fp4_matrix(planes).dense, planes.dense)
    scaled = random_planes(128, 512, group, factor=0.000_731)
    torch.testing.assert_close(fp4_matrix(scaled).dense, scaled.dense, rtol=2**-10, atol=6 * 2**-24)


def test_non_fp4_weights_are_refused() -> None:
    planes = random_planes(128, 512, MXFP4)
    third = torch.full((4, 2, 128), 1 / 3)
    with pytest.raises(ModelError, match="neither MXFP4 nor NVFP4"):
        fp4_matrix(dataclasses.replace(planes, code="int"))
    with pytest.raises(ModelError, match="not a power of two"):
        fp4_matrix(dataclasses.replace(planes, scale=pack_halves(third, third)))
    ragged = torch.linspace(0.5, 1.5, 8 * 2 * 128).view(8, 2, 128)
    with pytest.raises(ModelError, match="not e4m3"):
        fp4_matrix(dataclasses.replace(random_planes(128, 512, NVFP4), scale=pack_halves(ragged, ragged)))


@FORMATS
def test_a_quantized_value_is_the_nearest_that_its_scale_allows(group: int) -> None:
    matrix = fp4_matrix(random_planes(64, 768, group))
    a = torch.randn(16, 640).half() * torch.logspace(-6, 4, 16).unsqueeze(1)
    a[3, 64:96] = 0
    rows = quantized(a.half(), matrix)
    scale = scale_values(rows.scales).transpose(0, 1).reshape(16, -1)[
        :, : 640 // group
    ] * rows.factor.double().unsqueeze(1)
    values = a.half().double().view(16, -1, group)
    nearest = (scale.unsqueeze(2) * VALUES[:8].view(8, 1, 1, 1) - values.abs()).abs().amin(0)
    actual = (decode(rows.codes, scale_values(rows.scales)) * rows.factor.unsqueeze(1))[:, :640].view(16, -1, group)
    torch.testing.assert_close((actual - values).abs(), nearest, rtol=0, atol=0)
    assert not rows.codes.transpose(0, 1).flatten(1)[:, 320:].any()
    peak = values.abs().amax(2)
    ratio = (peak / scale)[peak > 2**-23]
    if group == MXFP4:
        assert (ratio <= 7).all()
        assert (ratio > 3.5).all()
    else:
        assert (ratio <= 6 * 17 / 16).all()
        assert (ratio >= 6 * 15 / 16)[(scale > 2**-6 * rows.factor.unsqueeze(1))[peak > 2**-23]].all()


def assert_product(actual: Tensor, rows: Fp4Rows, matrix: Fp4Matrix, meaning: Callable[[Tensor], Tensor]) -> None:
    weights = decode(matrix.codes, meaning(matrix.scales)) * matrix.factor.double().unsqueeze(1)
    expected = (decode(rows.codes, meaning(rows.scales)) * rows.factor.double().unsqueeze(1) @ weights.T)[:, : matrix.n]
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@FORMATS
@pytest.mark.parametrize(("n", "k"), [(200, 700), pytest.param(128, 2048, marks=pytest.mark.nightly)])
def test_product(group: int, n: int, k: int) -> None:
    matrix = fp4_matrix(random_planes(n, k, group))
    rows = quantized(torch.randn(16, k).half(), matrix)
    if group == NVFP4:
        matrix = dataclasses.replace(matrix, scales=bounded(matrix.scales))
        rows = dataclasses.replace(rows, scales=bounded(rows.scales))
    workspace = SplitWorkspace(matrix.codes.device, [plan(matrix)])
    for _ in range(2):
        assert_product(multiply(rows, matrix, workspace), rows, matrix, read)
        assert not workspace.counters.any()


@FORMATS
def test_reference_matches_the_formats(group: int) -> None:
    matrix = fp4_matrix(random_planes(96, 700, group, factor=0.25))
    rows = Fp4Rows.empty(matrix)
    quantize_rows_fp4_reference(torch.randn(16, 700), rows)
    out = torch.empty(16, 96)
    fp4_matmul_reference(rows, matrix, out, SplitWorkspace(out.device, []))
    assert_product(out, rows, matrix, scale_values)
