"""The cases of tests/gpu in the interpreter: against float64 definitions, and with bits independent of other rows.

Two tiles are also tested as compiled for each chip (test_races.py): the compiler chooses the order of sums over a tile.
With another order for two tiles, a prompt's KV cache would differ from that of decoding.
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

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy, for rows with NaN
CASES = {case.name: case for case in (*gemm_cases.CASES, *token_cases.CASES)}
ALWAYS = (
    *("matmul q4_k", "residual q4_k", "swiglu q8_0", "head q4_k 300", "convolve_in 160", "convolve_out 160"),
    *("two tiles residual q6_k with a tap", "two tiles swiglu q8_0", "two tiles qkv q8_0 64 torch.float16"),
)


def filled(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))


def updated(x: Tensor, args: Arguments) -> dict[str, Tensor]:
    """Return a residual stream and the inputs of the next norm."""
    before = args["previous_norm"]
    scaled = x * args["gain"].double() / (before.squares.double().sum(0) / before.size + before.eps).sqrt()[:, None]
    squares = torch.stack([tile.square().sum(1) for tile in x.split(128, 1)])
    return {"x": x, "a_out": filled(scaled, args["a_out"].shape[1]), "squares_out": squares}


def mixed(args: Arguments, x: Tensor, side: int) -> Tensor:
    """Compute the convolution of one side by its definition, element by element."""
    coefficients = args["coefficients"]
    _, kernel, hidden = coefficients.base.shape
    delta = coefficients.delta.double().view(16, 2, kernel, -1)
    out = torch.zeros(16, hidden, dtype=torch.float64)
    for m in range(16):
        for back in range(min(kernel, m + 1)):
            own = delta[m, side, back].repeat_interleave(coefficients.group)
            out[m] += (coefficients.base[side, back].double() + own) * x[m - back]
    return out


def attended(args: Arguments) -> Tensor:
    """Compute attention of the rows of a block in float64."""
    start, q = int(args["start"]), args["q"].double()
    rows, block = len(q), args.get("block", len(q))
    keys, values = (part[: start + rows].double() for part in args["cache"].read())
    keys, values = (part.repeat_interleave(q.shape[1] // keys.shape[1], 1) for part in (keys, values))
    slot, row = torch.arange(start + rows), start + torch.arange(rows)[:, None]
    seen = slot <= row if args.get("mask", "chain") == "chain" else (slot < start + block).expand(rows, -1)
    if args.get("window"):
        seen = seen & ((row - slot).abs() < args["window"])
    scores = torch.einsum("thd,nhd->htn", q, keys) / q.shape[2] ** 0.5
    weights = scores.masked_fill(~seen, -float("inf")).softmax(-1)
    return torch.einsum("htn,nhd->thd", weights, values).flatten(1)[:block]


def definition(case: Case, change: Callable[[Arguments], None] | None = None) -> dict[str, Tensor]:
    """Return the outputs of a case, computed in float64."""
    args = case.build(CPU)
    if change:
        change(args)
    match case.name.split()[0]:
        case "attention" | "prompt_attention":
            outputs = {"out": attended(args)}
        case "matmul":
            outputs = {"out": exact(args["a"], args["planes"]) * exact_norm_factor(args["norm"])}
        case "head":
            logits = exact(args["a"], args["planes"]) * exact_norm_factor(args["norm"]) * args.get("scale", 1.0)
            if cap := args.get("softcap"):
                logits = cap * (logits / cap).tanh()
            best = logits.topk(2).values
            assert (best[:, 0] - best[:, 1]).min() > 1e-4  # no accidental ties
            outputs = {"logits": logits, "out": logits.argmax(1)}
        case "residual":
            x = exact(args["a"], args["planes"]) + args["x"].double()
            x = x if args["bias"] is None else x + args["bias"].double()
            ring = {}
            if args["tap"]:
                ring["tap.ring"] = args["tap"].ring.double()
                ring["tap.ring"][(57 + torch.arange(16)) % 64, x.shape[1] : 2 * x.shape[1]] = x / 16
            outputs = updated(x, args) | ring
        case "swiglu":
            both = exact(args["a"], args["planes"]) * exact_norm_factor(args["norm"])
            gate, up = both[:, ::2], both[:, 1::2]
            outputs = {"out": filled(gate / (1 + (-gate).exp()) * up / 16, args["out"].shape[1])}
        case "embed":
            x = args["table"].dense.double()[args["ids"].long()]
            squares = torch.zeros_like(args["squares"]).double()
            squares[0] = x.square().sum(1)
            outputs = {
                "x": x,
                "squares": squares,
                "a": x * args["gain"] / (squares[0] / x.shape[1] + 1e-6).sqrt()[:, None],
            }
        case "convolve_in":
            normed = args["a"].double() * exact_norm_factor(args["norm"])
            n = args["coefficients"].base.shape[-1]
            outputs = {"out": filled(mixed(args, normed[:, :n], 0), args["out"].shape[1])}
        case "convolve_out":
            outputs = updated(args["x"].double() + mixed(args, args["y"].double() + args["bias"].double(), 1), args)
        case _:
            assert case.name == "gather_taps"
            outputs = {"a": args["ring"][(int(args["start"]) + torch.arange(16)) % 32].double()}
    return outputs


def check(actual: dict[str, Tensor], expected: dict[str, Tensor], error: float = 5e-6) -> None:
    """Assert the definition's numbers, up to `error` of the largest; sums are those of the rounded rows."""
    for name, value in expected.items():
        live, step = actual[name][: len(value)].double(), 6e-4 if actual[name].dtype == torch.float16 else 3e-6
        torch.testing.assert_close(live, value.double(), rtol=step, atol=error * float(value.abs().max()))
    for rows, sums in (("a", "sums"), ("out", "sums"), ("out", "sums_out"), ("a_out", "sums_out")):
        if rows in expected and sums in actual:
            count = len(expected[rows])
            torch.testing.assert_close(
                actual[sums][:, :count], group_sums(actual[rows])[:, :count], rtol=1e-5, atol=1e-4
            )


@pytest.mark.parametrize("by", ["kernel", "reference"])
@pytest.mark.parametrize(
    "name",
    [
        *("residual q4_k", "residual q6_k with a tap", "residual q8_0", "swiglu q8_0", "embed q6_k", "embed nvfp4"),
        *("convolve_in 160", "convolve_out 160", "convolve_out 256", "gather_taps", "head q6_k 600", "head q4_k 300"),
        *(f"matmul {layout}" for layout in LAYOUTS),
        *(case.name for case in token_cases.CASES if "attention" in case.name),
    ],
)
def test_definition(name: str, by: str) -> None:
    case, error = CASES[name], 4e-3 if "attention" in name else 5e-6
    check(case.run(CPU) if by == "kernel" else case.expected(), definition(case), error)


def test_large_activations_do_not_overflow_the_minimums() -> None:
    def enlarge(args: Arguments) -> None:
        args["a"].fill_(60000.0)
        args["sums"].copy_(group_sums(args["a"]))

    case = CASES["matmul q4_k"]
    check(case.run(CPU, enlarge), definition(case, enlarge))


@pytest.mark.parametrize(
    ("name", "module"), [("residual q4_k", residual), ("swiglu q8_0", swiglu), ("matmul int4 by 128", matmul)]
)
def test_split_of_k_with_an_empty_part(name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "plan", lambda n, _k, _device, BN=128: SplitPlan(-(-n // BN), BN, 3))
    case, workspace = CASES[name], SplitWorkspace(CPU, [SplitPlan(8, 128, 3)])

    def run() -> dict[str, Tensor]:
        args = case.build(CPU) | {"workspace": workspace}
        case.op(**args)
        assert not workspace.counters.any()
        return case.results(args)

    first = run()
    check(first, definition(case))
    with reversed_programs():
        assert all(torch.equal(tensor, first[part]) for part, tensor in run().items())


def test_ids_of_dead_rows_are_ignored() -> None:
    def kill(args: Arguments) -> None:
        args["ids"][1:] = torch.tensor([-1, 1000, -(2**31), 2**31 - 1] * 4, dtype=torch.int32)[1:]

    case = CASES["embed q6_k"]
    with_dead_ids, without = case.run(CPU, kill), case.run(CPU)
    assert torch.equal(with_dead_ids["x"][0], without["x"][0])
    assert torch.equal(with_dead_ids["a"][0], without["a"][0])


def named(cases: list[Case]) -> pytest.MarkDecorator:
    """Parametrize with cases, most of which run only at night."""
    some = [case if case.name in ALWAYS else pytest.param(case, marks=pytest.mark.nightly) for case in cases]
    return pytest.mark.parametrize("case", some, ids=lambda case: case.name)


@named([case for case in CASES.values() if case.rows])
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # the interpreter's `tl.max` of rows that are not a number
def test_rows_do_not_depend_on_the_rows_after_them(case: Case) -> None:
    test_kernels.test_rows_do_not_depend_on_the_rows_after_them(case, 7, CPU)


@named(gemm_cases.TILED)
def test_two_tiles_leave_the_bits_of_each(case: Case) -> None:
    for tile in (0, 1):
        test_kernels.test_two_tiles_leave_the_bits_of_each(case, tile, CPU)
