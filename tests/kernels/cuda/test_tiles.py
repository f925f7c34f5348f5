"""Two tiles of 16 rows in one program leave, to the bit, what each of them leaves by itself.

In the interpreter, and as compiled for each chip (test_as_compiled.py): sums over a tile run in an order that the
compiler chooses, and a prompt would have other keys and values than decoding if it chose another one for two tiles.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda import qkv, residual, swiglu
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.qkv import HeadRange
from localdflash.kernels.cuda.residual import Tap
from localdflash.kernels.cuda.rope import rope_tables
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from tests.support.random_planes import LAYOUTS, activations, group_sums, random_planes

CPU = torch.device("cpu")
K, START, SLOTS, RING = 512, 21, 64, 64
WORKSPACE = SplitWorkspace(CPU, [SplitPlan(8, 128, 3)])
ONE, OTHER, BOTH = torch.tensor([0]), torch.tensor([1]), torch.tensor([0, 1])


@dataclass
class Rows:
    """Tiles of activations [T, 16, K] and what a launch reads besides; of one tile without the first axis."""

    planes: Planes
    tiles: Tensor  # which of the two

    def some(self, both: Tensor) -> Tensor:
        return both[self.tiles].squeeze(0)

    def room(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.some(torch.zeros(2, *shape, dtype=dtype))

    @property
    def a(self) -> tuple[Tensor, Tensor, Planes]:
        both, planes = torch.stack([activations(self.planes, seed)[0] / 16 for seed in (1, 2)]), self.planes
        if planes.scaling == "product":
            planes = replace(planes, base=planes.base.unflatten(0, (2, 16))[self.tiles].flatten(0, 1))
        return self.some(both), self.some(torch.stack([group_sums(tile) for tile in both])), planes

    @property
    def norm(self) -> Norm:
        squares, before = torch.rand(2, 2, 3, 16, generator=torch.Generator().manual_seed(3)) * 300
        return Norm(self.some(squares), self.some(before), 384, 1e-6)

    @property
    def start(self) -> Tensor:
        return (START + 16 * self.tiles[:1]).int()


def run_residual(rows: Rows, tapped: bool) -> Iterator[Tensor]:
    torch.manual_seed(4)
    n = rows.planes.n
    width = n + -n % 128
    x, gain, bias = rows.some(torch.randn(2, 16, n) * 5), torch.rand(n) + 0.5, torch.randn(n)
    ring = torch.zeros(RING, 2 * n, dtype=torch.float16)
    left = rows.room(16, width, dtype=torch.float16), rows.room(width // 32, 16), rows.room(width // 128, 16)
    if tapped:
        residual.residual(*rows.a, x, gain, rows.norm, *left, WORKSPACE, tap=Tap(ring, n, rows.start))
    else:
        residual.residual(*rows.a, x, gain, None, *left, WORKSPACE, add=False, bias=bias)
    yield from (x, *left)
    if tapped:
        yield ring[START : START + 32].unflatten(0, (2, 16))[rows.tiles].squeeze(0)


def run_swiglu(rows: Rows) -> Iterator[Tensor]:
    width = rows.planes.n // 2 + -(rows.planes.n // 2) % 128
    out, sums = rows.room(16, width, dtype=torch.float16), rows.room(width // 32, 16)
    swiglu.swiglu(*rows.a, rows.norm, out, sums, WORKSPACE)
    yield from (out, sums)


def run_qkv(rows: Rows, dtype: torch.dtype, head_norm: bool) -> Iterator[Tensor]:
    torch.manual_seed(5)
    d = rows.planes.n // 4
    cache, q = Cache.empty(1, SLOTS, 1, d, dtype, CPU).layer(0), rows.room(16, 2, d, dtype=torch.float16)
    gain = torch.rand(d) + 0.5 if head_norm else None
    bias, rope = None if head_norm else torch.randn(4 * d), rope_tables(SLOTS, d, 1e4, CPU)
    heads = HeadRange(0, 4, 2, 1)
    qkv.qkv(*rows.a, rows.norm, heads, gain, gain, rope, rows.start, q, cache, WORKSPACE, bias=bias)
    yield q
    for part in (cache.k, cache.v, cache.k_scale, cache.v_scale):
        if part is not None:
            yield part.view(torch.uint8)[START : START + 32].unflatten(0, (2, 16))[rows.tiles].squeeze(0)


@pytest.fixture(
    params=[
        pytest.param((1, 4), id="whole", marks=pytest.mark.nightly),
        pytest.param((3, 4), id="split"),
        pytest.param((1, 6), id="roomy", marks=pytest.mark.nightly),
    ],
    autouse=True,
)
def _cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that share a tile, of three the last has nothing to do; and stages, six on data centre chips."""
    split, stages = request.param
    for module in (residual, swiglu, qkv):
        plan = lambda n, _k, _device, BN=128: SplitPlan(-(-n // BN), BN, split, stages)  # noqa: E731
        monkeypatch.setattr(module, "plan", plan)


def layouts(*always: str) -> list[Any]:
    """All layouts, of which most are for the night."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.nightly) for name in LAYOUTS]


def check(run: Callable[[Rows], Iterator[Tensor]], planes: Planes) -> None:
    """Both tiles together against each alone."""
    one, other, both = (list(run(Rows(planes, tiles))) for tiles in (ONE, OTHER, BOTH))
    assert all(tensor.any() for tensor in one)
    for mine, its, together in zip(one, other, both, strict=True):
        assert not torch.equal(mine, its)
        assert torch.equal(torch.stack((mine, its)), together)
    assert not WORKSPACE.counters.any()


@pytest.mark.parametrize("name", layouts("q4_k"))
def test_the_residual_stream(name: str) -> None:
    check(lambda rows: run_residual(rows, True), random_planes(name, 160, K))  # a last tile of 32 columns


def test_a_residual_stream_that_begins() -> None:
    check(lambda rows: run_residual(rows, False), random_planes("q8_0", 160, K))


@pytest.mark.parametrize("name", layouts("mxfp4"))
def test_swiglu(name: str) -> None:
    check(run_swiglu, random_planes(name, 2 * 72, K))  # a last group of 8


@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    [
        ("q6_k", 64, torch.float16),
        ("q8_0", 64, torch.int8),
        *(
            pytest.param("q4_k", 128, dtype, marks=pytest.mark.nightly)
            for dtype in (torch.float16, torch.float8_e4m3fn)
        ),
    ],
)
def test_heads(name: str, size: int, dtype: torch.dtype) -> None:
    if dtype == torch.float8_e4m3fn and os.environ.get("CHIP") == "86":
        pytest.skip("e4m3 came with compute capability 8.9")
    check(lambda rows: run_qkv(rows, dtype, size == 128), random_planes(name, 4 * size, K))


@pytest.mark.parametrize("kernel", ["residual", "swiglu", "qkv"])
def test_products_of_the_fp4_mode(kernel: str) -> None:
    product = torch.randn(32, 256, generator=torch.Generator().manual_seed(6)) * 3
    run = {
        "residual": lambda rows: run_residual(rows, True),
        "swiglu": run_swiglu,
        "qkv": lambda rows: run_qkv(rows, torch.float16, True),
    }[kernel]
    check(run, Planes(256, 128, 32, product, None, "product", product))
