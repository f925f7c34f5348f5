"""DFlash 2's walk over candidates in the interpreter, against float64 maths."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda.selector import select, select_reference

VOCABULARY, NAN = 90, float("nan")
both = pytest.mark.parametrize("op", [select, select_reference])


def given(k: int, rank: int, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    torch.manual_seed(k)
    return {
        "values": torch.randn(16, k).sort(descending=True).values,
        "tokens": torch.stack([torch.randperm(VOCABULARY)[:k] for _ in range(16)]).int(),
        "wanted": torch.randn(16, rank),
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
    values, tokens, wanted, predecessors, successors, draft = arguments.values()
    before, found = int(draft[0]), []
    for slot in range(first, first + count):
        goal = predecessors[before].double() * wanted[slot].double()
        scores = values[slot].double() + successors[tokens[slot].long()].double() @ goal
        before = int(tokens[slot, scores.argmax()])
        found.append(before)
    return found


@both
@pytest.mark.parametrize(("k", "rank"), [(1, 32), (7, 32), (16, 256), (5, 40)])
@pytest.mark.parametrize(("first", "count"), [(1, 7), (0, 15)])
def test_against_the_definition(op: Callable[..., None], k: int, rank: int, first: int, count: int) -> None:
    arguments = given(k, rank)
    wanted = oracle(arguments, first, count)
    assert run(op, arguments, first, count) == wanted
    assert k == 1 or wanted != arguments["tokens"][first : first + count, 0].tolist()  # not the likeliest each time


@both
def test_of_equals_the_likeliest_wins(op: Callable[..., None]) -> None:
    arguments = given(6, 32) | {"wanted": torch.zeros(16, 32), "values": torch.ones(16, 6)}
    assert run(op, arguments, 1, 4) == arguments["tokens"][1:5, 0].tolist()


@both
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_nan_marks_its_slot(op: Callable[..., None]) -> None:
    """As `top_k` hands it on, or from the product."""
    arguments = given(4, 32)
    arguments["values"][2, 0], arguments["tokens"][2, 0] = NAN, -1
    arguments["wanted"][4] = NAN
    found = run(op, arguments, 1, 5)
    assert [token == -1 for token in found] == [False, True, False, True, False]


def test_reference_in_float32() -> None:
    arguments = given(8, 64, torch.float32)
    assert run(select_reference, arguments, 1, 7) == oracle(arguments, 1, 7)
