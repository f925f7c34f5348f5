"""The int8-activation GEMM in the interpreter against float64 products of the rounded rows with the planes' weights."""

import numpy as np
import pytest
import torch
from torch import Tensor

from localdflash.errors import UsageError
from localdflash.kernels import w4a8 as module
from localdflash.kernels.norm import Norm
from localdflash.kernels.planes import Planes
from localdflash.kernels.split_k import Plan, Workspace
from localdflash.kernels.w4a8 import (
    NIBBLES_ASM,
    SIGNED_NIBBLES_ASM,
    check,
    quantize_rows,
    quantize_rows_reference,
    w4a8_matmul,
    w4a8_matmul_reference,
)
from tests.kernels.ptx_emulator import run_ptx
from tests.support.random_planes import activations, exact, random_planes

CPU = torch.device("cpu")
NAMES = ["int4 by 128", "int4 by 128, minimum", "q4_k"]

pytestmark = pytest.mark.filterwarnings("ignore:.*(encountered in|All-NaN).*:RuntimeWarning")  # rows that hold garbage


def buffers(k: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(16, k, dtype=torch.int8), torch.zeros(k // 128, 16), torch.zeros(k // 32, 16)


def quantized(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = buffers(a.shape[1])
    quantize_rows(a, *rows)
    return rows


def values(codes: Tensor, scales: Tensor) -> Tensor:
    return codes.double() * scales.double().T.repeat_interleave(128, 1)


def run(rows: tuple[Tensor, Tensor, Tensor], planes: Planes, cut: Plan, norm: Norm | None = None) -> Tensor:
    out = torch.full((16, planes.n), float("nan"))
    w4a8_matmul(*rows, planes, out, Workspace(CPU, [cut]), norm)
    return out


@pytest.fixture(params=[1, 4])
def cut(request, monkeypatch):
    cut = Plan(2, 128, request.param)
    monkeypatch.setattr(module, "plan", lambda *_: cut)
    return cut


def test_rows_round_to_the_nearest_code():
    a = torch.randn(16, 256).half()
    a[3] = 0
    codes, scales, sums = quantized(a)
    blocks = a.double().unflatten(1, (2, 128))
    assert (codes.abs().unflatten(1, (2, 128)).amax(-1) == 127)[torch.arange(16) != 3].all()
    assert ((values(codes, scales).unflatten(1, (2, 128)) - blocks).abs().amax(-1) <= scales.T.double() * 0.5001).all()
    torch.testing.assert_close(sums.double(), values(codes, scales).unflatten(1, (-1, 32)).sum(-1).T)
    reference = buffers(256)
    for rows in (a, a.float()):
        quantize_rows_reference(rows, *reference)
        assert torch.equal(reference[0], codes)
        assert torch.equal(reference[1], scales)
        torch.testing.assert_close(reference[2], sums)


@pytest.mark.parametrize("name", NAMES)
def test_the_product_is_that_of_the_rounded_rows(name, cut):
    planes = random_planes(name, 200, 512)
    rows = quantized(activations(planes)[0])
    norm = Norm(torch.rand(4, 16) + 1, torch.rand(4, 16) + 1, 512, 0.0)
    factor = torch.sqrt((norm.before.double().sum(0) / 512) / (norm.squares.double().sum(0) / 512))
    want = exact(values(*rows[:2]), planes) * factor[:, None]
    reference = torch.zeros(16, 200)
    w4a8_matmul_reference(*rows, planes, reference, Workspace(CPU, []), norm)
    for out in (run(rows, planes, cut, norm), reference):
        assert (out.double() - want).abs().max() <= 3e-6 * want.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_not_live_change_no_bit(name, cut):
    planes = random_planes(name, 256, 512)
    a = activations(planes)[0]
    want = run(quantized(a), planes, cut)
    assert torch.equal(run(quantized(a), planes, cut), want)
    a[7:] = float("nan")
    assert torch.equal(run(quantized(a), planes, cut)[:7], want[:7])


def test_other_planes_are_refused():
    for name in ("int4 by 128", "int4 by 128, minimum", "q4_k"):
        check(random_planes(name, 128, 256))
    for name in ("q5_k", "q6_k", "q8_0", "int4 by 32", "int4 by 64, minimum", "mxfp4"):
        with pytest.raises(UsageError, match="float16"):
            check(random_planes(name, 128, 256))


def test_inline_assembly_on_every_word():
    low = np.arange(1 << 16, dtype=np.uint32)
    words = np.stack([low, np.random.default_rng(0).permutation(low)]).astype(np.uint16).reshape(2, -1, 2)
    pairs = {"$4": words[0].copy().view(np.uint32)[:, 0], "$5": words[1].copy().view(np.uint32)[:, 0]}
    four = np.concatenate([words[0], words[1]], 1).astype(np.int64)  # the words of an element, in order
    plain, signed = run_ptx(NIBBLES_ASM.value, **pairs), run_ptx(SIGNED_NIBBLES_ASM.value, **pairs)
    for i in range(4):
        code = four >> (4 * i) & 15
        assert np.array_equal(plain[f"${i}"].view(np.int8).reshape(-1, 4), code)
        assert np.array_equal(signed[f"${i}"].view(np.int8).reshape(-1, 4), 16 * (code - 8))
