"""The k best tokens a row in the interpreter, against a stable sort."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

import localdflash.kernels.cuda.selector as top_k_module
from localdflash.base.errors import UsageError
from localdflash.kernels.cuda.selector import TopKScratch, top_k, top_k_reference

CPU, NAN, INF = torch.device("cpu"), float("nan"), float("inf")
both = pytest.mark.parametrize("select", [top_k, top_k_reference])


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_k_module, "SLICE", 64)


@contextmanager
def reversed_programs() -> Iterator[None]:
    """Let the interpreter, which runs the programs of a grid row by row, take them backwards and slice by slice."""
    forward = interpreter_builder.set_grid_idx

    def backward(x: int, y: int, z: int) -> None:
        nx, ny, _ = interpreter_builder.grid_dim
        last = nx * ny - 1 - (x * ny + y)
        forward(last % nx, last // nx, z)

    interpreter_builder.set_grid_idx = backward
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = forward


def poisoned(n: int) -> TopKScratch:
    """Scratch whose contents would win if they were read before they are written."""
    scratch = TopKScratch(CPU, n)
    scratch.keys.fill_(torch.iinfo(torch.int64).max)
    return scratch


def run(
    select: Callable[..., None], logits: Tensor, k: int, scratch: TopKScratch, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    values, tokens = torch.full((16, k), NAN), torch.full((16, k), -9, dtype=torch.int32)
    select(logits, values, tokens, scratch, ids)
    assert not scratch.counters.any()
    return values, tokens


def oracle(logits: Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    orders = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:k] for row in logits.tolist()]
    return [[row[i] for i in order] for row, order in zip(logits.tolist(), orders, strict=True)], orders


@both
@pytest.mark.parametrize(("n", "k"), [(1, 1), (64, 3), (70, 5), (150, 4), (16, 16)])
def test_order_and_ties(select: Callable[..., None], n: int, k: int) -> None:
    torch.manual_seed(n)
    logits = torch.randint(-4, 4, (16, n)).float() / 8  # full of ties
    logits[2] = torch.randn(n) * 1e-3
    logits[3] = -INF
    logits[4, n // 2] = INF
    logits[5, ::2] = -0.0
    logits[5, 1::2] = 0.0
    values, tokens = run(select, logits, k, poisoned(n))
    assert (values.tolist(), tokens.tolist()) == oracle(logits, k)


@both
def test_ids_and_nan(select: Callable[..., None]) -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(16, 100), torch.arange(7, 707, 7, dtype=torch.int32)
    logits[3, 40] = NAN
    logits[4, 41] = -NAN
    values, tokens = run(select, logits, 4, poisoned(100), ids)
    assert tokens[3:5, 0].tolist() == [-1, -1]
    assert values[3:5, 0].isnan().all()
    live = (torch.arange(16) < 3) | (torch.arange(16) > 4)
    assert torch.equal(tokens[live], ids[torch.tensor(oracle(logits[live], 4)[1])])


def test_program_order_and_second_launch() -> None:
    torch.manual_seed(1)
    logits = torch.randint(-4, 4, (16, 130)).float()
    scratch = poisoned(130)
    first = run(top_k, logits, 4, scratch)
    with reversed_programs():
        second = run(top_k, logits, 4, scratch)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_strided_logits() -> None:
    torch.manual_seed(2)
    logits = torch.full((16, 112), INF)
    logits[:, :100] = torch.randn(16, 100)
    assert run(top_k, logits[:, :100], 3, poisoned(100))[1].tolist() == oracle(logits[:, :100], 3)[1]


@both
@pytest.mark.parametrize(("n", "k"), [(100, 17), (3, 4), (100, 0)])
def test_refused_k(select: Callable[..., None], n: int, k: int) -> None:
    with pytest.raises(UsageError, match="top_k gives"):
        run(select, torch.zeros(16, n), k, TopKScratch(CPU, n))
