"""The cases of tests/gpu in the interpreter: by the definition in float64, and with bits that do not depend on others.

Two tiles also as compiled for each chip (test_as_compiled.py): sums over a tile run in an order that the compiler
chooses, and a prompt would have another KV cache than decoding if it chose another one for two tiles.
"""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.proof.calls import Arguments
from localdflash.kernels.cuda import residual, swiglu
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from tests.gpu import gemm_cases, test_kernels, token_cases
from tests.gpu.case import CPU, Case
from tests.support.interpreter import reversed_programs
from tests.support.random_planes import exact, exact_norm_factor, group_sums

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy, of rows that hold NaN
CASES = {case.name: case for case in (*gemm_cases.CASES, *token_cases.CASES)}
ALWAYS = (
    *("matmul q4_k", "residual q4_k", "swiglu q8_0", "head q4_k 300", "convolve_in 160", "convolve_out 160"),
    *("two tiles residual q6_k with a tap", "two tiles swiglu q8_0", "two tiles qkv q8_0 64 torch.float16"),
)


def filled(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))


def updated(x: Tensor, given: Arguments) -> dict[str, Tensor]:
    """A residual stream and what it leaves for the next norm."""
    before = given["before"]
    scaled = x * given["gain"].double() / (before.squares.double().sum(0) / before.size + before.eps).sqrt()[:, None]
    squares = torch.stack([tile.square().sum(1) for tile in x.split(128, 1)])
    return {"x": x, "a_out": filled(scaled, given["a_out"].shape[1]), "squares_out": squares}


def mixed(given: Arguments, x: Tensor, side: int) -> Tensor:
    """The convolution of one side, element by element of its definition."""
    changes = given["changes"]
    _, kernel, hidden = changes.base.shape
    change = changes.change.double().view(16, 2, kernel, -1)
    out = torch.zeros(16, hidden, dtype=torch.float64)
    for m in range(16):
        for back in range(min(kernel, m + 1)):
            own = change[m, side, back].repeat_interleave(changes.group)
            out[m] += (changes.base[side, back].double() + own) * x[m - back]
    return out


def definition(case: Case) -> dict[str, Tensor]:
    """Return the outputs of a case, computed in float64."""
    given = case.build(CPU)
    match case.name.split()[0]:
        case "residual":
            x = exact(given["a"], given["planes"]) + given["x"].double()
            x = x if given["bias"] is None else x + given["bias"].double()
            ring = {}
            if given["tap"]:
                ring["tap.ring"] = given["tap"].ring.double()
                ring["tap.ring"][(57 + torch.arange(16)) % 64, x.shape[1] : 2 * x.shape[1]] = x / 16
            return updated(x, given) | ring
        case "swiglu":
            both = exact(given["a"], given["planes"]) * exact_norm_factor(given["norm"])
            gate, up = both[:, ::2], both[:, 1::2]
            return {"out": filled(gate / (1 + (-gate).exp()) * up / 16, given["out"].shape[1])}
        case "embed":
            x = given["table"].dense.double()[given["ids"].long()]
            squares = torch.zeros_like(given["squares"]).double()
            squares[0] = x.square().sum(1)
            return {
                "x": x,
                "squares": squares,
                "a": x * given["gain"] / (squares[0] / x.shape[1] + 1e-6).sqrt()[:, None],
            }
        case "convolve_in":
            normed = given["a"].double() * exact_norm_factor(given["norm"])
            n = given["changes"].base.shape[-1]
            return {"out": filled(mixed(given, normed[:, :n], 0), given["out"].shape[1])}
        case "convolve_out":
            return updated(given["x"].double() + mixed(given, given["y"].double() + given["bias"].double(), 1), given)
        case _:
            assert case.name == "gather_taps"
            return {"a": given["ring"][(int(given["start"]) + torch.arange(16)) % 32].double()}


def check(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """The numbers of the definition; sums are those of the rounded rows."""
    for name, value in wanted.items():
        step = 6e-4 if got[name].dtype == torch.float16 else 3e-6
        torch.testing.assert_close(got[name].double(), value, rtol=step, atol=5e-6 * float(value.abs().max()))
    for rows, sums in (("a", "sums"), ("out", "sums_out"), ("a_out", "sums_out")):
        if rows in wanted:
            torch.testing.assert_close(got[sums], group_sums(got[rows]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("by", ["kernel", "reference"])
@pytest.mark.parametrize(
    "name",
    [
        *("residual q4_k", "residual q6_k with a tap", "residual q8_0", "swiglu q8_0", "embed q6_k", "embed nvfp4"),
        *("convolve_in 160", "convolve_out 160", "convolve_out 256", "gather_taps"),
    ],
)
def test_definition(name: str, by: str) -> None:
    case = CASES[name]
    check(case.run(CPU) if by == "kernel" else case.expected(), definition(case))


@pytest.mark.parametrize(("name", "module"), [("residual q4_k", residual), ("swiglu q8_0", swiglu)])
def test_split_of_k_with_an_empty_part(name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "plan", lambda n, _k, _device, BN=128: SplitPlan(-(-n // BN), BN, 3))
    case, workspace = CASES[name], SplitWorkspace(CPU, [SplitPlan(8, 128, 3)])

    def run() -> dict[str, Tensor]:
        given = case.build(CPU) | {"workspace": workspace}
        case.op(**given)
        assert not workspace.counters.any()
        return case.results(given)

    first = run()
    check(first, definition(case))
    with reversed_programs():
        assert all(torch.equal(tensor, first[part]) for part, tensor in run().items())


def test_ids_of_dead_rows_are_harmless() -> None:
    def kill(given: Arguments) -> None:
        given["ids"][1:] = torch.tensor([-1, 1000, -(2**31), 2**31 - 1] * 4, dtype=torch.int32)[1:]

    case = CASES["embed q6_k"]
    alone, full = case.run(CPU, kill), case.run(CPU)
    assert torch.equal(alone["x"][0], full["x"][0])
    assert torch.equal(alone["a"][0], full["a"][0])


def named(cases: list[Case]) -> pytest.MarkDecorator:
    """Parametrize with cases, most of which are for the night."""
    some = [case if case.name in ALWAYS else pytest.param(case, marks=pytest.mark.nightly) for case in cases]
    return pytest.mark.parametrize("case", some, ids=lambda case: case.name)


@named([case for case in CASES.values() if case.rows])
def test_rows_do_not_depend_on_the_rows_after_them(case: Case) -> None:
    test_kernels.test_rows_do_not_depend_on_the_rows_after_them(case, 7, CPU)


@named(gemm_cases.TILED)
def test_two_tiles_leave_the_bits_of_each(case: Case) -> None:
    for tile in (0, 1):
        test_kernels.test_two_tiles_leave_the_bits_of_each(case, tile, CPU)
