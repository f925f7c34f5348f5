"""SwiGLU in the interpreter against float64 maths from the definition."""

import dataclasses

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.swiglu as module
from localdflash.backends.cuda.repack.plane_packing import quantize
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from localdflash.kernels.cuda.swiglu import swiglu, swiglu_reference
from tests.support.random_planes import group_sums

CPU = torch.device("cpu")
EPS = 0.02  # one that shows


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
        self.norm = Norm(torch.rand(2, 16) * 300, torch.rand(2, 16) * 300, 200, EPS) if self.normed else None

    def run(self, kernel: bool = True) -> tuple[Tensor, Tensor]:
        """Out and its sums."""
        out, sums = torch.zeros(16, self.width, dtype=self.wide), torch.full((self.width // 32, 16), 9.0)
        workspace = SplitWorkspace(CPU, [vars(module)["plan"](self.planes.n, self.planes.padded_k, CPU)])
        call = swiglu if kernel else swiglu_reference
        call(self.a, self.sums, self.planes, self.norm, out, sums, workspace)
        assert not workspace.counters.any()
        return out, sums

    def oracle(self) -> Tensor:
        """The same, float64 without rounding."""
        both = self.a[:, : self.k].double() @ self.planes.dense.double().T
        if self.norm is not None:
            mean = [squares.double().sum(0) / self.norm.size + EPS for squares in (self.norm.squares, self.norm.before)]
            both *= (mean[1] / mean[0]).sqrt().unsqueeze(1)
        gate, up = both[:, ::2], both[:, 1::2]
        out = torch.zeros(16, self.width, dtype=torch.float64)
        out[:, : self.features] = gate / (1 + (-gate).exp()) * up / 16
        return out


@pytest.fixture(autouse=True)
def _cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a tile and programs that share it; 128 and 1 unless a test says otherwise."""
    columns, split = getattr(request, "param", (128, 1))
    monkeypatch.setattr(module, "plan", lambda n, _k, _device: SplitPlan(-(-n // columns), columns, split))


def check(case: Case, kernel: bool = True) -> tuple[Tensor, Tensor]:
    """A call against the oracle; its sums against the stored output."""
    out, sums = case.run(kernel)
    step = 6e-4 if case.wide == torch.float16 else 1e-5
    torch.testing.assert_close(out.double(), case.oracle(), rtol=step, atol=1e-5)
    torch.testing.assert_close(sums, group_sums(out), rtol=1e-6, atol=1e-5)
    return out, sums


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("case", [
    Case(),
    Case(features=72, k=100, normed=False),  # ragged: a last tile of 16 columns, a last group of 8
    Case(scale=4.0),  # gates of +-100
], ids=["plain", "ragged", "steep"])  # fmt: skip
def test_against_the_definition(case: Case, kernel: bool) -> None:
    check(case, kernel)


@pytest.mark.parametrize("_cut", [(64, 1), (128, 3)], indirect=True)
def test_other_tiles_and_a_split_with_an_empty_part() -> None:
    case = Case(k=512)
    for one, other in zip(check(case), case.run(), strict=True):
        assert torch.equal(one, other)


def test_reference_in_float32() -> None:
    check(Case(wide=torch.float32, features=72), kernel=False)


@pytest.mark.parametrize(("_cut", "live"), [((128, 1), 1), ((128, 2), 7)], indirect=["_cut"])
def test_rows_do_not_depend_on_the_others(live: int) -> None:
    case = Case()
    whole, whole_reference = case.run(), case.run(kernel=False)
    case.a[live:] = float("nan")
    case.sums[:, live:] = float("nan")
    poisoned, poisoned_reference = case.run(), case.run(kernel=False)
    for one, other in ((whole, poisoned), (whole_reference, poisoned_reference)):
        assert torch.equal(one[0][:live], other[0][:live])
        assert torch.equal(one[1][:, :live], other[1][:, :live])
    assert poisoned[0][live:].isnan().all()
