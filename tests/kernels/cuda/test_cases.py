"""The cases of tests/gpu in the interpreter: by the definition in float64, and with bits that do not depend on others.

Two tiles also as compiled for each chip (test_races.py): sums over a tile run in an order that the compiler
chooses, and a prompt would have another KV cache than decoding if it chose another one for two tiles.
"""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.proof.calls import Arguments
from localdflash.kernels.cuda import matmul, residual, swiglu
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from tests.gpu import gemm_cases, test_kernels, token_cases
from tests.gpu.case import CPU, Case
from tests.support.interpreter import reversed_programs
from tests.support.random_planes import LAYOUTS, exact, exact_norm_factor, group_sums

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


def attended(given: Arguments) -> Tensor:
    """Attention of the rows of a block, in float64."""
    start, block, q = int(given["start"]), given.get("block", 16), given["q"].double()
    keys, values = (part[: start + 16].double() for part in given["cache"].read())
    keys, values = (part.repeat_interleave(q.shape[1] // keys.shape[1], 1) for part in (keys, values))
    slot, row = torch.arange(start + 16), start + torch.arange(16)[:, None]
    seen = slot <= row if given["mask"] == "chain" else (slot < start + block).expand(16, -1)
    if given["window"]:
        seen = seen & ((row - slot).abs() < given["window"])
    scores = torch.einsum("thd,nhd->htn", q, keys) / q.shape[2] ** 0.5
    weights = scores.masked_fill(~seen, -float("inf")).softmax(-1)
    return torch.einsum("htn,nhd->thd", weights, values).flatten(1)[:block]


def definition(case: Case, change: Callable[[Arguments], None] | None = None) -> dict[str, Tensor]:
    """Return the outputs of a case, computed in float64."""
    given = case.build(CPU)
    if change:
        change(given)
    match case.name.split()[0]:
        case "attention":
            found = {"out": attended(given)}
        case "matmul":
            found = {"out": exact(given["a"], given["planes"]) * exact_norm_factor(given["norm"])}
        case "head":
            logits = exact(given["a"], given["planes"]) * exact_norm_factor(given["norm"]) * given.get("scale", 1.0)
            if cap := given.get("softcap"):
                logits = cap * (logits / cap).tanh()
            best = logits.topk(2).values
            assert (best[:, 0] - best[:, 1]).min() > 1e-4  # no accidental ties: the likeliest is certain
            found = {"logits": logits, "out": logits.argmax(1)}
        case "residual":
            x = exact(given["a"], given["planes"]) + given["x"].double()
            x = x if given["bias"] is None else x + given["bias"].double()
            ring = {}
            if given["tap"]:
                ring["tap.ring"] = given["tap"].ring.double()
                ring["tap.ring"][(57 + torch.arange(16)) % 64, x.shape[1] : 2 * x.shape[1]] = x / 16
            found = updated(x, given) | ring
        case "swiglu":
            both = exact(given["a"], given["planes"]) * exact_norm_factor(given["norm"])
            gate, up = both[:, ::2], both[:, 1::2]
            found = {"out": filled(gate / (1 + (-gate).exp()) * up / 16, given["out"].shape[1])}
        case "embed":
            x = given["table"].dense.double()[given["ids"].long()]
            squares = torch.zeros_like(given["squares"]).double()
            squares[0] = x.square().sum(1)
            found = {
                "x": x,
                "squares": squares,
                "a": x * given["gain"] / (squares[0] / x.shape[1] + 1e-6).sqrt()[:, None],
            }
        case "convolve_in":
            normed = given["a"].double() * exact_norm_factor(given["norm"])
            n = given["changes"].base.shape[-1]
            found = {"out": filled(mixed(given, normed[:, :n], 0), given["out"].shape[1])}
        case "convolve_out":
            found = updated(given["x"].double() + mixed(given, given["y"].double() + given["bias"].double(), 1), given)
        case _:
            assert case.name == "gather_taps"
            found = {"a": given["ring"][(int(given["start"]) + torch.arange(16)) % 32].double()}
    return found


def check(got: dict[str, Tensor], wanted: dict[str, Tensor], error: float = 5e-6) -> None:
    """The numbers of the definition, up to `error` of the largest; sums are those of the rounded rows."""
    for name, value in wanted.items():
        live, step = got[name][: len(value)].double(), 6e-4 if got[name].dtype == torch.float16 else 3e-6
        torch.testing.assert_close(live, value.double(), rtol=step, atol=error * float(value.abs().max()))
    for rows, sums in (("a", "sums"), ("out", "sums"), ("out", "sums_out"), ("a_out", "sums_out")):
        if rows in wanted and sums in got:
            count = len(wanted[rows])
            torch.testing.assert_close(got[sums][:, :count], group_sums(got[rows])[:, :count], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("by", ["kernel", "reference"])
@pytest.mark.parametrize(
    "name",
    [
        *("residual q4_k", "residual q6_k with a tap", "residual q8_0", "swiglu q8_0", "embed q6_k", "embed nvfp4"),
        *("convolve_in 160", "convolve_out 160", "convolve_out 256", "gather_taps", "head q6_k 600", "head q4_k 300"),
        *(f"matmul {layout}" for layout in LAYOUTS),
        *(case.name for case in token_cases.CASES if case.name.startswith("attention")),
    ],
)
def test_definition(name: str, by: str) -> None:
    case, error = CASES[name], 4e-3 if name.startswith("attention") else 5e-6
    check(case.run(CPU) if by == "kernel" else case.expected(), definition(case), error)


def test_large_activations_do_not_overflow_the_minimums() -> None:
    def enlarge(given: Arguments) -> None:
        given["a"].fill_(60000.0)
        given["sums"].copy_(group_sums(given["a"]))

    case = CASES["matmul q4_k"]
    check(case.run(CPU, enlarge), definition(case, enlarge))


@pytest.mark.parametrize(
    ("name", "module"), [("residual q4_k", residual), ("swiglu q8_0", swiglu), ("matmul int4 by 128", matmul)]
)
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
