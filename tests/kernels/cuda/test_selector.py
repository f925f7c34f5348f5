"""DFlash 2's candidates and the walk over them in the interpreter, against a stable sort and float64 maths."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.selector as module
from localdflash.base.errors import UsageError
from localdflash.kernels.cuda.selector import TopKScratch, select, select_reference, top_k, top_k_reference
from tests.support.interpreter import reversed_programs

CPU, NAN, INF = torch.device("cpu"), float("nan"), float("inf")
both_top_k = pytest.mark.parametrize("select", [top_k, top_k_reference])


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 64)


def poisoned(n: int) -> TopKScratch:
    """Scratch whose contents would win if they were read previous they are written."""
    scratch = TopKScratch(CPU, n)
    scratch.keys.fill_(torch.iinfo(torch.int64).max)
    return scratch


def best(
    select: Callable[..., None], logits: Tensor, k: int, scratch: TopKScratch, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    values, tokens = torch.full((16, k), NAN), torch.full((16, k), -9, dtype=torch.int32)
    select(logits, values, tokens, scratch, ids)
    assert not scratch.counters.any()
    return values, tokens


def sorted_best(logits: Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    orders = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:k] for row in logits.tolist()]
    return [[row[i] for i in order] for row, order in zip(logits.tolist(), orders, strict=True)], orders


@both_top_k
@pytest.mark.parametrize(("n", "k"), [(150, 4), pytest.param(70, 16, marks=pytest.mark.nightly)])
def test_order_and_ties(select: Callable[..., None], n: int, k: int) -> None:
    torch.manual_seed(n)
    logits = torch.randint(-4, 4, (16, n)).float() / 8  # full of ties
    logits[2] = torch.randn(n) * 1e-3
    logits[3] = -INF
    logits[4, n // 2] = INF
    logits[5, ::2] = -0.0
    logits[5, 1::2] = 0.0
    values, tokens = best(select, logits, k, poisoned(n))
    assert (values.tolist(), tokens.tolist()) == sorted_best(logits, k)


@both_top_k
def test_ids_and_nan(select: Callable[..., None]) -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(16, 100), torch.arange(7, 707, 7, dtype=torch.int32)
    logits[3, 40] = NAN
    logits[4, 41] = -NAN
    values, tokens = best(select, logits, 4, poisoned(100), ids)
    assert tokens[3:5, 0].tolist() == [-1, -1]
    assert values[3:5, 0].isnan().all()
    live = (torch.arange(16) < 3) | (torch.arange(16) > 4)
    assert torch.equal(tokens[live], ids[torch.tensor(sorted_best(logits[live], 4)[1])])


def test_program_order_second_launch_and_strided_logits() -> None:
    torch.manual_seed(1)
    logits = torch.full((16, 140), INF)[:, :130]
    logits.copy_(torch.randint(-4, 4, (16, 130)))
    scratch = poisoned(130)
    first = best(top_k, logits, 2, scratch)
    with reversed_programs():
        second = best(top_k, logits, 2, scratch)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[1].tolist() == sorted_best(logits, 2)[1]


@both_top_k
def test_refused_k(select: Callable[..., None]) -> None:
    for n, k in ((100, 17), (3, 4), (100, 0)):
        with pytest.raises(UsageError, match=f"top_k: {k} of"):
            best(select, torch.zeros(16, n), k, TopKScratch(CPU, n))


VOCABULARY = 90
both = pytest.mark.parametrize("op", [select, select_reference])


def random_arguments(k: int, rank: int, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(k)
    return {
        "values": torch.randn(16, k).sort(descending=True).values,
        "tokens": torch.stack([torch.randperm(VOCABULARY)[:k] for _ in range(16)]).int(),
        "selectors": torch.randn(16, rank),
        "predecessors": torch.randn(VOCABULARY, rank).to(dtype),
        "successors": torch.randn(VOCABULARY, rank).to(dtype),
        "draft": torch.full((16,), 5, dtype=torch.int32),
    }


def run(op: Callable[..., None], arguments: dict[str, Tensor], first: int, count: int) -> list[int]:
    out = torch.full((16,), -9, dtype=torch.int32)
    op(**arguments, out=out, first=first, count=count)
    assert (out[:first] == -9).all()
    assert (out[first + count :] == -9).all()
    return out[first : first + count].tolist()


def oracle(arguments: dict[str, Tensor], first: int, count: int) -> list[int]:
    values, tokens, selectors, predecessors, successors, draft = arguments.values()
    previous, chosen_tokens = int(draft[0]), []
    for slot in range(first, first + count):
        goal = predecessors[previous].double() * selectors[slot].double()
        scores = values[slot].double() + successors[tokens[slot].long()].double() @ goal
        previous = int(tokens[slot, scores.argmax()])
        chosen_tokens.append(previous)
    return chosen_tokens


@both
@pytest.mark.parametrize(("k", "rank"), [(7, 40), (16, 256)])
def test_against_the_definition(op: Callable[..., None], k: int, rank: int) -> None:
    first, count = (0, 15) if k == 16 else (1, 7)
    arguments = random_arguments(k, rank)
    expected = oracle(arguments, first, count)
    assert run(op, arguments, first, count) == expected
    assert expected != arguments["tokens"][first : first + count, 0].tolist()  # not the likeliest each time


@both
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_ties_take_the_likeliest_and_nan_marks_its_slot(op: Callable[..., None]) -> None:
    """The NaN comes from `top_k` or from the product."""
    arguments = random_arguments(6, 32) | {"selectors": torch.zeros(16, 32), "values": torch.ones(16, 6)}
    assert run(op, arguments, 1, 4) == arguments["tokens"][1:5, 0].tolist()
    arguments["values"][2, 0], arguments["tokens"][2, 0] = NAN, -1
    arguments["selectors"][4] = NAN
    assert [token == -1 for token in run(op, arguments, 1, 5)] == [False, True, False, True, False]
