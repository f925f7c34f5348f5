"""The quantized GEMM in the interpreter against float64 products with the weights that planes define."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from gguf import GGMLQuantizationType, quants
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from localdflash.backends.cuda.repack.gguf_planes import planes_of_blocks
from localdflash.kernels.cuda import matmul as module
from localdflash.kernels.cuda.matmul import accumulate, matmul, matmul_reference, plan, pointers, switches
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes, dequantize
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from localdflash.models.weights.ggml_types import GGMLType
from tests.support.random_planes import LAYOUTS, activations, exact, group_sums, random_planes

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy, of rows that hold garbage


def depth(name: str) -> int:
    """Along k: blocks of 128 or 64, or supers of 256, two of them or more."""
    return 512 if LAYOUTS[name][2] == "byte4" else 384


def run(planes: Planes, a: Tensor, sums: Tensor, norm: Norm | None = None) -> Tensor:
    out = torch.full((16, planes.n), float("nan"))
    matmul(a, sums, planes, out, SplitWorkspace(CPU, [plan(planes.n, planes.padded_k, CPU)]), norm)
    return out


def assert_close(out: Tensor, want: Tensor) -> None:
    assert (out.double() - want).abs().max() <= 2e-6 * want.abs().max()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_multiplies_as_defined(name):
    planes = random_planes(name, 200, depth(name))
    a, sums = activations(planes)
    assert_close(run(planes, a, sums), exact(a, planes))


@pytest.mark.parametrize("name", ["int4 by 128", "q4_k", "q6_k", "nvfp4"])
def test_k_of_one_block(name):
    rows, _, scaling, *_ = LAYOUTS[name]
    planes = random_planes(name, 128, 256 if scaling == "byte4" else 4 * rows)
    a, sums = activations(planes)
    assert_close(run(planes, a, sums), exact(a, planes))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q4_K", "Q6_K"])
def test_gguf_blocks_multiply_like_ggufs_own_weights(name):
    n, k = 40, 256
    kind = GGMLType[name]
    raw = np.random.default_rng(0).integers(0, 256, (n, k // kind.block_weights, kind.block_bytes), dtype=np.uint8)
    for offset in {"Q8_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}[name]:  # the float16 scales
        raw[..., offset : offset + 2] = np.array([0.0007], np.float16).view(np.uint8)
    weights = torch.from_numpy(quants.dequantize(raw.reshape(n, -1), GGMLQuantizationType[name])).double()
    planes = planes_of_blocks(torch.from_numpy(raw), kind, n, k)
    a, sums = activations(planes)
    assert_close(run(planes, a, sums), a[:, :k].double() @ weights.T)


@pytest.mark.parametrize(
    ("name", "live"),
    [("int4 by 128", 1), ("int4 by 128, minimum", 7), ("q4_k", 1), ("q4_k", 7), ("q6_k", 7), ("q8_0", 1), ("q4_1", 7)],
)
def test_rows_that_are_not_live_change_no_bit(name, live):
    planes = random_planes(name, 128, 256)
    a, sums = activations(planes)
    want = run(planes, a, sums)
    a[live:], sums[:, live:] = (
        torch.tensor([float("nan"), float("inf"), 65504.0])[torch.arange(16 - live) % 3, None],
        float("nan"),
    )
    assert torch.equal(run(planes, a, sums)[:live], want[:live])


@pytest.mark.parametrize("name", ["q4_k", "q4_1"])
def test_large_activations_do_not_overflow_the_minimums(name):
    planes = random_planes(name, 128, 256)
    a = torch.full((16, 256), 60000.0, dtype=torch.float16)
    assert_close(run(planes, a, group_sums(a)), exact(a, planes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_norm_scales_the_rows(dtype):
    planes = random_planes("int4 by 128", 200, 384)
    a, sums = activations(planes)
    norm = Norm(torch.rand(3, 16) * 300, torch.rand(3, 16) * 200, 384, 1e-6)
    factor = torch.sqrt((norm.before.double().sum(0) / 384 + 1e-6) / (norm.squares.double().sum(0) / 384 + 1e-6))
    want = exact(a, planes) * factor[:, None]
    out = torch.zeros(16, 200, dtype=dtype)
    matmul(a, sums, planes, out, SplitWorkspace(CPU, [plan(200, 384, CPU)]), norm)
    assert (out.double() - want).abs().max() <= (2e-6 if dtype == torch.float32 else 1e-3) * want.abs().max()


@pytest.mark.parametrize("name", ["int4 by 128, minimum", "q5_k"])
def test_the_reference(name):
    planes = random_planes(name, 200, 256)
    a, sums = activations(planes)
    norm = Norm(torch.rand(3, 16), torch.rand(3, 16), 384, 1e-6)
    out, reference = run(planes, a, sums, norm), torch.zeros(16, 200)
    for rows in (a, a.float()):
        matmul_reference(rows, sums, planes, reference, SplitWorkspace(CPU, []), norm)
        assert_close(out, reference.double())


# ---- split-K: forced, since a small matrix would not be split


@contextlib.contextmanager
def programs_in_reverse() -> Iterator[None]:
    """The interpreter runs programs one after another; from the last to the first here."""
    forward = interpreter_builder.set_grid_idx

    def backward(x: int, y: int, z: int) -> None:
        nx, ny, nz = interpreter_builder.grid_dim
        forward(nx - 1 - x, ny - 1 - y, nz - 1 - z)

    interpreter_builder.set_grid_idx = backward
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = forward


@pytest.mark.parametrize(("name", "k"), [("int4 by 128", 640), ("q4_k", 1280), ("q4_1", 640)])
def test_split_k(name, k, monkeypatch):
    """Five steps in four ranges: two, two, one and none."""
    cut = SplitPlan(1, 128, 4)
    monkeypatch.setattr(module, "plan", lambda *_: cut)
    planes = random_planes(name, 128, k)
    a, sums = activations(planes)
    workspace = SplitWorkspace(CPU, [cut])
    workspace.partials.fill_(float("nan"))
    outs = [torch.zeros(16, 128) for _ in range(3)]
    for out in outs[:2]:
        matmul(a, sums, planes, out, workspace)
        assert not workspace.counters.any()
    with programs_in_reverse():
        matmul(a, sums, planes, outs[2], workspace)
    assert_close(outs[0], exact(a, planes))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_the_plan_gives_every_multiprocessor_work():
    for n, k in ((2560, 9728), (6144, 2560), (19456, 2560), (151936, 2560), (128, 256)):
        cut = plan(n, k, CPU)
        assert cut.tiles * cut.BN >= n
        assert cut.SPLIT_K == 1 or k // 128 >= 4 * cut.SPLIT_K
        assert cut.tiles * cut.SPLIT_K >= 128 or k // 128 < 8
    assert plan(151936, 2560, CPU).SPLIT_K == 1
    assert plan(6144, 2560, CPU, BN=64).tiles == 96


# ---- accumulate on its own: what other kernels use of it


@triton.jit
def _tile(
    a, sums, base, high, scale, supers, minimum, out, K, N, column, expert, R: tl.constexpr, HIGH_BITS: tl.constexpr,
    SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, HAS_MIN: tl.constexpr, ASM: tl.constexpr,
    BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    acc, _ = accumulate(a, sums, base, high, scale, supers, minimum, K, N, column, 0, expert, R, HIGH_BITS, SCALING,
                        ZERO, CODE, HAS_MIN, BN, 1, STAGES, ASM)  # fmt: skip
    tl.store(out + tl.arange(0, 16)[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@pytest.mark.parametrize(
    ("name", "stages"),
    [("int4 by 128, minimum", 4), ("q8_0", 4), ("q4_1", 4), ("q4_k", 4), ("q4_k", 6), ("q6_k", 4), ("q6_k", 6)],
)
def test_a_tile_of_one_expert_of_a_stack(name, stages):
    planes = random_planes(name, 128, depth(name), experts=3)
    a, sums = activations(planes)
    out = torch.zeros(16, 64)
    _tile[(1,)](
        a, sums, *pointers(planes), out, planes.padded_k, planes.padded_n, 64, 2, **switches(planes), BN=64,
        STAGES=stages, enable_fp_fusion=True,
    )  # fmt: skip
    assert_close(out, exact(a, planes, 2)[:, 64:])


def test_the_oracle_is_not_the_kernels_idea_of_the_weights():
    """Q6_K by hand: one code, one scale."""
    planes = random_planes("q6_k", 128, 256)
    code = (int(planes.base[0, 0]) & 15) | (int(planes.high[0, 0]) & 3) << 4
    scale = int(planes.scale[0, 0]) & 255
    super_scale = (planes.supers[0, 0] & 0xFFFF).to(torch.int16).view(torch.float16).item()
    assert dequantize(planes)[0, 0].item() == pytest.approx((code - 32) * (scale - 256 * (scale > 127)) * super_scale)
