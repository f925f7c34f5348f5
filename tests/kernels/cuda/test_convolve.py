"""DFlash 2's convolutions around a sublayer in the interpreter, against float64 maths."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda.convolve import (
    Changes,
    convolve_in,
    convolve_in_reference,
    convolve_out,
    convolve_out_reference,
)
from localdflash.kernels.cuda.norm import Norm
from tests.support.random_planes import EPS, exact_norm_factor, group_sums, spoil_rows

CASES = [(160, 256, 4, 32), (64, 128, 1, 8)]  # H, width, kernel, group
shapes = pytest.mark.parametrize("shape", CASES, ids=str)


@dataclass
class Case:
    """What both sides read."""

    hidden: int
    width: int
    kernel: int
    group: int
    dtype: torch.dtype = torch.float16

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        base = torch.randn(2, self.kernel, self.hidden)
        self.changes = Changes(base, torch.randn(16, 2 * self.kernel * self.hidden // self.group), self.group)
        parts = -(-self.hidden // 128)
        squares, before = torch.rand(2, parts, 16) * self.hidden
        self.norm = Norm(squares, before, self.hidden, EPS)
        self.a = torch.zeros(16, self.width, dtype=self.dtype)
        self.a[:, : self.hidden] = torch.randn(16, self.hidden)
        self.y, self.x = torch.randn(2, 16, self.hidden)
        self.bias, self.gain = torch.randn(self.hidden), torch.rand(self.hidden) + 0.5

    def mixed(self, x: Tensor, side: int) -> Tensor:
        """The convolution of one side, element by element of its definition."""
        change = self.changes.change.double().view(16, 2, self.kernel, -1)
        out = torch.zeros(16, self.hidden, dtype=torch.float64)
        for m in range(16):
            for back in range(min(self.kernel, m + 1)):
                own = change[m, side, back].repeat_interleave(self.group)
                out[m] += (self.changes.base[side, back].double() + own) * x[m - back]
        return out


def entered(op: Callable[..., None], case: Case) -> tuple[Tensor, Tensor]:
    out, sums = torch.zeros_like(case.a), torch.zeros(case.width // 32, 16)
    op(case.a, case.norm, case.changes, out, sums)
    return out, sums


def left(op: Callable[..., None], case: Case, biased: bool) -> dict[str, Tensor]:
    out = {
        "x": case.x.clone(),
        "a_out": torch.zeros_like(case.a),
        "sums_out": torch.zeros(case.width // 32, 16),
        "squares_out": torch.full_like(case.norm.squares, 9.0),
    }
    op(case.y, case.bias if biased else None, case.changes, gain=case.gain, before=case.norm, **out)
    return out


@shapes
@pytest.mark.parametrize("op", [convolve_in, convolve_in_reference])
def test_what_goes_in_is_normed_and_convolved(op: Callable[..., None], shape: tuple[int, int, int, int]) -> None:
    case = Case(*shape)
    normed = case.a[:, : case.hidden].double() * exact_norm_factor(case.norm)
    out, sums = entered(op, case)
    torch.testing.assert_close(out[:, : case.hidden].double(), case.mixed(normed, 0), rtol=6e-4, atol=2e-3)
    assert not out[:, case.hidden :].any()
    torch.testing.assert_close(sums, group_sums(out), rtol=1e-6, atol=1e-5)


@shapes
@pytest.mark.parametrize("op", [convolve_out, convolve_out_reference])
def test_what_comes_out_is_added(op: Callable[..., None], shape: tuple[int, int, int, int]) -> None:
    case, biased = Case(*shape), shape[0] == 160
    x = case.x.double() + case.mixed(case.y.double() + (case.bias.double() if biased else 0.0), 1)
    out = left(op, case, biased)
    torch.testing.assert_close(out["x"].double(), x, rtol=1e-5, atol=1e-5)
    scaled = x * case.gain.double() / (case.norm.squares.double().sum(0) / case.hidden + EPS).sqrt().unsqueeze(1)
    torch.testing.assert_close(out["a_out"][:, : case.hidden].double(), scaled, rtol=6e-4, atol=1e-4)
    assert not out["a_out"][:, case.hidden :].any()
    squares = torch.stack([tile.square().sum(1) for tile in x.split(128, 1)])
    torch.testing.assert_close(out["squares_out"].double(), squares, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out["sums_out"], group_sums(out["a_out"]), rtol=1e-6, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_rows_do_not_depend_on_later_ones() -> None:
    live = 7
    case = Case(160, 256, 3, 16)
    whole, whole_out = entered(convolve_in, case)[0], left(convolve_out, case, True)
    spoil_rows(live, case.a, case.y, case.x, case.changes.change, case.norm)
    assert torch.equal(entered(convolve_in, case)[0][:live], whole[:live])
    poisoned = left(convolve_out, case, True)
    for name in ("x", "a_out"):
        assert torch.equal(poisoned[name][:live], whole_out[name][:live])


def test_reference_in_float32() -> None:
    case = Case(96, 128, 3, 16, torch.float32)
    found = entered(convolve_in_reference, case)[0][:, :96].double()
    normed = case.a[:, :96].double() * exact_norm_factor(case.norm)
    torch.testing.assert_close(found, case.mixed(normed, 0), rtol=1e-5, atol=1e-5)
