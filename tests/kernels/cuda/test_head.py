"""The head in the interpreter: ties, NaN and short vocabularies (see test_cases for the definition)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.head as head_module
from localdflash.kernels.cuda.head import HeadScratch, head, head_reference
from localdflash.kernels.cuda.planes import Planes, pack_fields
from tests.support.interpreter import reversed_programs
from tests.support.random_planes import exact, group_sums

CPU, NAN = torch.device("cpu"), float("nan")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def exact_planes(n: int, k: int = 128) -> Planes:
    """Return planes of small integers / 8: with integer inputs every summation order gives the same bits."""
    padded = -n % 128 + n
    codes = torch.randint(6, 11, (k, padded))
    scale = torch.full((k // 128, padded), 0.125)
    return Planes(n, k, 32, pack_fields(codes, 32, 4), None, "block", scale, zero=8)


def integers(k: int = 128) -> Tensor:
    return torch.randint(-2, 3, (16, k)).half()


def run(a: Tensor, planes: Planes) -> dict[str, Tensor]:
    out = torch.full((16,), -9, dtype=torch.int32)
    logits, scratch = torch.full((16, planes.n), NAN), HeadScratch(CPU, [planes])
    scratch.keys.fill_(torch.iinfo(torch.int64).max)  # would win if read before it is written
    head(a, group_sums(a), planes, None, out, scratch, logits=logits)
    assert not scratch.counter.any()
    return {"out": out, "logits": logits}


@pytest.mark.parametrize(("n", "codes"), [(1, (6, 11)), (130, (6, 8))])
def test_ragged_vocabularies_exact_ties_and_negative_logits(n: int, codes: tuple[int, int]) -> None:
    torch.manual_seed(n)
    planes, a = exact_planes(n), integers().abs() + 1 if codes[1] == 8 else integers()
    planes.base[:] = pack_fields(torch.randint(*codes, (128, planes.padded_n)), 32, 4)
    expected, actual = exact(a, planes), run(a, planes)
    assert codes[1] > 8 or (expected < 0).all()
    assert torch.equal(actual["logits"].double(), expected)
    assert torch.equal(actual["out"].long(), expected.argmax(-1))


@pytest.mark.parametrize("reduce", [1, pytest.param(128, marks=pytest.mark.nightly)])
def test_ties_inside_a_tile_and_across_tiles(reduce: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "REDUCE", reduce)
    torch.manual_seed(1)
    planes, a = exact_planes(700), integers()
    twins = [(3, 5, 699), (127, 128), (640, 300), (256, 255, 257)]
    for row, columns in enumerate(twins):
        aligned = a[row].sign().long().unsqueeze(1) * 2 + 8  # codes with the row's signs
        planes.base[:, list(columns)] = pack_fields(aligned, 32, 4)
    forward, expected = run(a, planes), exact(a, planes)
    assert forward["out"][: len(twins)].tolist() == [3, 127, 300, 255]
    assert torch.equal(forward["out"].long(), expected.argmax(-1))
    with reversed_programs():
        backward = run(a, planes)
    for name, value in forward.items():
        assert torch.equal(value, backward[name])


def test_nan_marks_its_row_only_and_padding_is_never_read() -> None:
    torch.manual_seed(2)
    planes, a = exact_planes(200), integers()
    clean = run(a, planes)
    planes.scale[:, 200:] = NAN
    assert all(torch.equal(value, clean[name]) for name, value in run(a, planes).items())
    a[5, 17] = NAN
    actual = run(a, planes)
    assert actual["out"][5] == -1
    others = torch.arange(16) != 5
    assert all(torch.equal(actual[name][others], clean[name][others]) for name in clean)
    planes.scale[:, 190] = NAN  # one logit per row
    assert (run(a, planes)["out"] == -1).all()


@pytest.mark.parametrize("op", [head, head_reference])
def test_short_vocabulary_and_no_logits(op: Callable[..., None]) -> None:
    torch.manual_seed(6)
    planes, a = exact_planes(200), integers()
    ids = torch.randperm(5000)[:200].sort().values.to(torch.int32)
    a[3, 0] = NAN
    out = torch.full((16,), -9, dtype=torch.int32)
    op(a, group_sums(a), planes, None, out, HeadScratch(CPU, [exact_planes(100), planes]), ids=ids)
    assert out[3] == -1
    live = torch.arange(16) != 3
    assert torch.equal(out[live], ids[exact(a, planes).argmax(-1)][live])
