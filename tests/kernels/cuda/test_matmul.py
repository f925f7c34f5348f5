"""The quantized GEMM in the interpreter against float64 products with the weights that planes define."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda import matmul as module
from localdflash.kernels.cuda.matmul import accumulate, matmul, matmul_reference, plan, pointers, switches
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from tests.support.interpreter import reversed_programs
from tests.support.random_planes import (
    LAYOUTS,
    activations,
    exact,
    exact_norm_factor,
    group_sums,
    random_norm,
    random_planes,
)

CPU, NAN = torch.device("cpu"), float("nan")

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy, of rows that hold garbage


def depth(name: str) -> int:
    """Along k: blocks of 128 or 64, or supers of 256, two of them or more."""
    return 512 if LAYOUTS[name][2] == "byte4" else 384


def run(planes: Planes, a: Tensor, sums: Tensor, norm: Norm | None = None) -> Tensor:
    out = torch.full((16, planes.n), NAN)
    matmul(a, sums, planes, out, SplitWorkspace(CPU, [plan(planes.n, planes.padded_k, CPU)]), norm)
    return out


def assert_close(out: Tensor, want: Tensor, tolerance: float = 2e-6) -> None:
    assert (out.double() - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize(("name", "k"), [*((name, depth(name)) for name in LAYOUTS), ("nvfp4", 64)])
def test_every_layout_multiplies_as_defined(name, k):
    planes = random_planes(name, 72, k)
    a, sums = activations(planes)
    assert_close(run(planes, a, sums), exact(a, planes))


def test_large_activations_do_not_overflow_the_minimums():
    planes = random_planes("q4_k", 128, 256)
    a = torch.full((16, 256), 60000.0, dtype=torch.float16)
    assert_close(run(planes, a, group_sums(a)), exact(a, planes))


def test_a_norm_scales_the_rows_and_the_reference_does_the_same():
    planes = random_planes("q5_k", 200, 512)
    a, sums = activations(planes)
    norm = random_norm(384, 3)
    want = exact(a, planes) * exact_norm_factor(norm)
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float16, 1e-3)):
        out = torch.zeros(16, 200, dtype=dtype)
        matmul(a, sums, planes, out, SplitWorkspace(CPU, [plan(200, 512, CPU)]), norm)
        assert_close(out, want, tolerance)
    for rows in (a, a.float()):
        matmul_reference(rows, sums, planes, reference := torch.zeros(16, 200), SplitWorkspace(CPU, []), norm)
        assert_close(reference, want)


@pytest.mark.parametrize(("name", "k"), [("int4 by 128", 640), pytest.param("q4_k", 1280, marks=pytest.mark.nightly)])
def test_split_k(name, k, monkeypatch):
    """Five steps in four ranges: two, two, one and none. Forced, since a small matrix would not be split."""
    cut = SplitPlan(1, 128, 4)
    monkeypatch.setattr(module, "plan", lambda *_: cut)
    planes = random_planes(name, 128, k)
    a, sums = activations(planes)
    workspace = SplitWorkspace(CPU, [cut])
    workspace.partials.fill_(NAN)
    first, second = torch.zeros(2, 16, 128)
    matmul(a, sums, planes, first, workspace)
    assert not workspace.counters.any()
    with reversed_programs():
        matmul(a, sums, planes, second, workspace)
    assert_close(first, exact(a, planes))
    assert torch.equal(first, second)


def test_the_plan_gives_every_multiprocessor_work():
    for n, k in ((2560, 9728), (6144, 2560), (19456, 2560), (151936, 2560), (128, 256)):
        cut = plan(n, k, CPU)
        assert cut.tiles * cut.BN >= n
        assert cut.SPLIT_K == 1 or k // 128 >= 4 * cut.SPLIT_K
        assert cut.tiles * cut.SPLIT_K >= 128 or k // 128 < 8
    assert plan(151936, 2560, CPU).SPLIT_K == 1
    assert plan(6144, 2560, CPU, BN=64).tiles == 96


@triton.jit
def _tile(
    a, sums, base, high, scale, supers, minimum, out, K, N, column, expert, R: tl.constexpr, HIGH_BITS: tl.constexpr,
    SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, HAS_MIN: tl.constexpr, ASM: tl.constexpr,
    BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    acc, _ = accumulate(a, sums, base, high, scale, supers, minimum, K, N, column, 0, expert, R, HIGH_BITS, SCALING,
                        ZERO, CODE, HAS_MIN, BN, 1, STAGES, ASM)  # fmt: skip
    tl.store(out + tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@pytest.mark.parametrize(("name", "stages"), [("q4_1", 4), ("q4_k", 6), ("q6_k", 4)])
def test_a_tile_of_one_expert_of_a_stack(name, stages):
    planes = random_planes(name, 128, depth(name), experts=3)
    a, sums = activations(planes)
    out = torch.zeros(16, 64)
    _tile[(1,)](
        a, sums, *pointers(planes), out, planes.padded_k, planes.padded_n, 64, 2, **switches(planes), BN=64,
        STAGES=stages, enable_fp_fusion=True,
    )  # fmt: skip
    assert_close(out, exact(a, planes, 2)[:, 64:])
