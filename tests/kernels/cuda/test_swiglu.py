"""SwiGLU in the interpreter against float64 maths from the definition."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.swiglu as module
from localdflash.backends.cuda.repack.plane_packing import quantize
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from localdflash.kernels.cuda.swiglu import swiglu, swiglu_reference
from tests.support.random_planes import (
    EPS,
    assert_same_rows,
    exact_norm_factor,
    group_sums,
    random_norm,
    spoil_rows,
)

CPU = torch.device("cpu")


@dataclasses.dataclass
class Case:
    """Everything that a call reads, and what it writes."""

    features: int = 128
    k: int = 256
    width: int = 128  # of out
    normed: bool = True
    scale: float = 1 / 8  # of the weights
    wide: torch.dtype = torch.float16  # of a and out

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        gate, up = torch.randn(2, self.features, self.k) * self.scale
        planes = self.planes = quantize(torch.stack((gate, up), 1).flatten(0, 1))
        self.a = torch.zeros(16, planes.padded_k, dtype=self.wide)
        self.a[:, : self.k] = torch.randn(16, self.k)
        self.sums = group_sums(self.a)
        self.norm = random_norm(200, 2, EPS) if self.normed else None

    def run(self, call: Callable[..., None] = swiglu) -> dict[str, Tensor]:
        """What a call writes."""
        out, sums = torch.zeros(16, self.width, dtype=self.wide), torch.full((self.width // 32, 16), 9.0)
        workspace = SplitWorkspace(CPU, [vars(module)["plan"](self.planes.n, self.planes.padded_k, CPU)])
        call(self.a, self.sums, self.planes, self.norm, out, sums, workspace)
        assert not workspace.counters.any()
        return {"out": out, "sums": sums}

    def check(self, call: Callable[..., None] = swiglu) -> dict[str, Tensor]:
        """A call against float64; its sums against the stored output."""
        got = self.run(call)
        both = self.a[:, : self.k].double() @ self.planes.dense.double().T * exact_norm_factor(self.norm)
        gate, up = both[:, ::2], both[:, 1::2]
        expected = torch.zeros(16, self.width, dtype=torch.float64)
        expected[:, : self.features] = gate / (1 + (-gate).exp()) * up / 16
        step = 6e-4 if self.wide == torch.float16 else 1e-5
        torch.testing.assert_close(got["out"].double(), expected, rtol=step, atol=1e-5)
        torch.testing.assert_close(got["sums"], group_sums(got["out"]), rtol=1e-6, atol=1e-5)
        return got


@pytest.fixture(autouse=True)
def _cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a tile and programs that share it; 128 and 1 unless a test says otherwise."""
    columns, split = getattr(request, "param", (128, 1))
    monkeypatch.setattr(module, "plan", lambda n, _k, _device: SplitPlan(-(-n // columns), columns, split))


@pytest.mark.parametrize("call", [swiglu, swiglu_reference])
@pytest.mark.parametrize("case", [
    Case(features=72, k=100, normed=False),  # ragged: a last tile of 16 columns, a last group of 8
    Case(scale=4.0),  # gates of +-100
], ids=["ragged", "steep"])  # fmt: skip
def test_against_the_definition(case: Case, call: Callable[..., None]) -> None:
    case.check(call)


@pytest.mark.parametrize("_cut", [(64, 1), (128, 3)], indirect=True)
def test_other_tiles_and_a_split_with_an_empty_part() -> None:
    case = Case(k=512)
    assert_same_rows(case.check(), case.run())


def test_reference_in_float32() -> None:
    Case(wide=torch.float32, features=72).check(swiglu_reference)


@pytest.mark.parametrize(("_cut", "live"), [((128, 1), 1), ((128, 2), 7)], indirect=["_cut"])
def test_rows_do_not_depend_on_the_others(live: int) -> None:
    case = Case()
    before = [case.run(call) for call in (swiglu, swiglu_reference)]
    spoil_rows(live, case.a, case.sums.T)
    after = [case.run(call) for call in (swiglu, swiglu_reference)]
    for one, other in zip(before, after, strict=True):
        assert_same_rows(one, other, live)
    assert after[0]["out"][live:].isnan().all()
