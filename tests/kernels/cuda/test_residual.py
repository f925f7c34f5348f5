"""The residual update and what it leaves for its consumers, in the interpreter, against float64 maths."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.residual as module
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.residual import Tap, gather_taps, gather_taps_reference, residual, residual_reference
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from tests.support.random_planes import EPS, assert_same_rows, group_sums, random_planes, spoil_rows

CPU = torch.device("cpu")
RING = 20


@dataclasses.dataclass
class Case:
    """Everything that a call reads, and what it writes."""

    hidden: int = 256
    k: int = 256
    width: int = 256  # of a_out
    add: bool = True
    scaled: bool = True  # whether a previous norm scales a_out
    tapped: bool = False
    biased: bool = False
    wide: torch.dtype = torch.float16  # of a, a_out and the ring

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        planes = self.planes = random_planes("q4_1", self.hidden, self.k)
        self.a = torch.zeros(16, planes.padded_k, dtype=self.wide)
        self.a[:, : self.k] = torch.randn(16, self.k)
        self.sums = group_sums(self.a)
        self.x = torch.randn(16, self.hidden)
        self.gain = torch.rand(self.hidden) + 0.5
        self.bias = torch.randn(self.hidden) if self.biased else None
        squares = torch.rand(-(-self.hidden // 128), 16) * 300
        self.before = Norm(squares, torch.rand(1, 16), 200, EPS) if self.scaled else None

    def run(self, call: Callable[..., None] = residual) -> dict[str, Tensor]:
        """What a call writes."""
        out = {
            "x": self.x.clone(),
            "a_out": torch.zeros(16, self.width, dtype=self.wide),
            "sums_out": torch.zeros(self.width // 32, 16),
            "squares_out": torch.full((-(-self.hidden // 128), 16), 9.0),
        }
        ring = torch.zeros(RING, 3 * self.hidden, dtype=self.wide)
        tap = Tap(ring, self.hidden, torch.tensor([11], dtype=torch.int32)) if self.tapped else None
        cut: SplitPlan = vars(module)["plan"](self.hidden, self.planes.padded_k, CPU, BN=128)
        workspace = SplitWorkspace(CPU, [cut])
        call(self.a, self.sums, self.planes, **out, gain=self.gain, before=self.before, workspace=workspace,
             add=self.add, tap=tap, bias=self.bias)  # fmt: skip
        assert not workspace.counters.any()
        return out | {"ring": ring}

    def check(self, call: Callable[..., None] = residual) -> dict[str, Tensor]:
        """A call against float64; its sums against the stored a_out."""
        got = self.run(call)
        x = self.a[:, : self.k].double() @ self.planes.dense.double().T
        x = x if self.bias is None else x + self.bias.double()
        x = x + self.x.double() if self.add else x
        a_out = torch.zeros(16, self.width, dtype=torch.float64)
        a_out[:, : self.hidden] = x * self.gain.double()
        if self.before is not None:
            a_out /= (self.before.squares.double().sum(0) / 200 + EPS).sqrt().unsqueeze(1)
        squares = torch.stack([tile.square().sum(1) for tile in x.split(128, 1)])
        ring = torch.zeros(RING, 3 * self.hidden, dtype=torch.float64)
        for m in range(16 if self.tapped else 0):
            ring[(11 + m) % RING, self.hidden : 2 * self.hidden] = x[m] / 16
        for name, value in {"x": x, "a_out": a_out, "squares_out": squares, "ring": ring}.items():
            step = 6e-4 if got[name].dtype == torch.float16 else 3e-6
            torch.testing.assert_close(got[name].double(), value, rtol=step, atol=1e-5)
        torch.testing.assert_close(got["sums_out"], group_sums(got["a_out"]), rtol=1e-6, atol=1e-5)
        return got


@pytest.fixture(autouse=True)
def _split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many programs share a tile; 1 unless a test says otherwise."""
    split = getattr(request, "param", 1)
    monkeypatch.setattr(module, "plan", lambda n, _k, _device, BN: SplitPlan(-(-n // BN), BN, split))


@pytest.mark.parametrize("call", [residual, residual_reference])
@pytest.mark.parametrize("case", [
    Case(add=False, scaled=False),
    Case(hidden=160, tapped=True, biased=True),  # ragged: the last tile has 32 columns, the last group none
    Case(hidden=72, width=128, k=128),  # a group of 8
], ids=["set", "ragged", "tiny"])  # fmt: skip
def test_against_the_definition(case: Case, call: Callable[..., None]) -> None:
    case.check(call)


@pytest.mark.parametrize("_split", [3], indirect=True)
def test_split_of_k_with_an_empty_part() -> None:
    case = Case(k=512, hidden=160)
    assert_same_rows(case.check(), case.run())


def test_reference_in_float32() -> None:
    Case(wide=torch.float32, tapped=True).check(residual_reference)


@pytest.mark.parametrize(("_split", "live"), [(1, 1), (2, 7)], indirect=["_split"])
def test_rows_do_not_depend_on_the_others(live: int) -> None:
    case = Case()
    before = [case.run(call) for call in (residual, residual_reference)]
    spoil_rows(live, case.a, case.x, case.sums.T, case.before)
    after = [case.run(call) for call in (residual, residual_reference)]
    for one, other in zip(before, after, strict=True):
        assert_same_rows(one, other, live)
    assert after[0]["x"][live:].isnan().all()


@pytest.mark.parametrize("gather", [gather_taps, gather_taps_reference])
@pytest.mark.parametrize(("start", "width", "k"), [(25, 1120, 1152), (1001, 256, 256)])
def test_gather_taps(gather: Callable[..., None], start: int, width: int, k: int) -> None:
    ring = torch.randn(32, width, generator=torch.Generator().manual_seed(start)).half()
    a, sums = torch.zeros(16, k).half(), torch.full((k // 32, 16), float("nan"))
    gather(ring, torch.tensor([start], dtype=torch.int32), a, sums)
    want = torch.zeros(16, k).half()
    for m in range(16):
        want[m, :width] = ring[(start + m) % 32]
    assert torch.equal(a, want)
    torch.testing.assert_close(sums, group_sums(want), rtol=1e-5, atol=1e-5)
