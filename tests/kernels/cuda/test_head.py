"""The head's argmax and logits in the interpreter, against float64 maths on the decoded weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.head as head_module
from localdflash.kernels.cuda.head import HeadScratch, head, head_reference
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes, pack_fields
from tests.support.interpreter import reversed_programs
from tests.support.random_planes import exact_norm_factor, group_sums, random_norm, random_planes

CPU, NAN, INF = torch.device("cpu"), float("nan"), float("inf")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def exact_planes(n: int, k: int = 128) -> Planes:
    """Small integers times 1/8: with small integers in `a`, every order of summation gives the same bits."""
    padded = -n % 128 + n
    codes = torch.randint(6, 11, (k, padded))
    scale = torch.full((k // 128, padded), 0.125)
    return Planes(n, k, 32, pack_fields(codes, 32, 4), None, "block", scale, zero=8)


def integers(k: int = 128) -> Tensor:
    return torch.randint(-2, 3, (16, k)).half()


def oracle(a: Tensor, planes: Planes, norm: Norm | None, scale: float = 1.0, softcap: float = 0.0) -> Tensor:
    logits = a[:, : planes.k].double() @ planes.dense.double().t() * exact_norm_factor(norm) * scale
    return softcap * (logits / softcap).tanh() if softcap else logits


def run(
    a: Tensor, planes: Planes, norm: Norm | None = None, scratch: HeadScratch | None = None, **options: Any
) -> dict[str, Tensor]:
    out = torch.full((16,), -9, dtype=torch.int32)
    logits = torch.full((16, planes.n), NAN)
    scratch = scratch or poisoned(planes)
    head(a, group_sums(a), planes, norm, out, scratch, logits=logits, **options)
    assert not scratch.counter.any()
    return {"out": out, "logits": logits}


def poisoned(planes: Planes) -> HeadScratch:
    """Scratch whose contents would win if they were read before they are written."""
    scratch = HeadScratch(CPU, [planes])
    scratch.keys.fill_(torch.iinfo(torch.int64).max)
    return scratch


@pytest.mark.parametrize(("layout", "scale", "softcap"), [("q4_k", 1.0, 0.0), ("q8_0", 0.196, 20.0)])
def test_against_float64(layout: str, scale: float, softcap: float) -> None:
    torch.manual_seed(0)
    planes, a, norm = random_planes(layout, 300, 256), torch.randn(16, 256).half(), random_norm(256, 3)
    got, want = run(a, planes, norm, scale=scale, softcap=softcap), oracle(a, planes, norm, scale, softcap)
    best = want.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-4  # no accidental ties, so the winner is certain
    assert torch.equal(got["out"].long(), want.argmax(-1))
    torch.testing.assert_close(got["logits"].double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize(("n", "codes"), [(1, (6, 11)), (130, (6, 8))])
def test_ragged_vocabularies_exact_ties_and_negative_logits(n: int, codes: tuple[int, int]) -> None:
    torch.manual_seed(n)
    planes, a = exact_planes(n), integers().abs() + 1 if codes[1] == 8 else integers()
    planes.base[:] = pack_fields(torch.randint(*codes, (128, planes.padded_n)), 32, 4)
    want, got = oracle(a, planes, None), run(a, planes)
    assert codes[1] > 8 or (want < 0).all()
    assert torch.equal(got["logits"].double(), want)
    assert torch.equal(got["out"].long(), want.argmax(-1))


@pytest.mark.parametrize("reduce", [1, pytest.param(128, marks=pytest.mark.nightly)])
def test_ties_inside_a_tile_and_across_tiles(reduce: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "REDUCE", reduce)
    torch.manual_seed(1)
    planes, a = exact_planes(700), integers()
    twins = [(3, 5, 699), (127, 128), (640, 300), (256, 255, 257)]
    for row, columns in enumerate(twins):
        aligned = a[row].sign().long().unsqueeze(1) * 2 + 8  # codes that agree with the row in every sign
        planes.base[:, list(columns)] = pack_fields(aligned, 32, 4)
    forward, want = run(a, planes), oracle(a, planes, None)
    assert forward["out"][: len(twins)].tolist() == [3, 127, 300, 255]
    assert torch.equal(forward["out"].long(), want.argmax(-1))
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
    got = run(a, planes)
    assert got["out"][5] == -1
    others = torch.arange(16) != 5
    assert all(torch.equal(got[name][others], clean[name][others]) for name in clean)
    planes.scale[:, 190] = NAN  # one logit of every row
    assert (run(a, planes)["out"] == -1).all()


def test_rows_are_independent_and_launches_repeat() -> None:
    torch.manual_seed(5)
    planes, a, norm = exact_planes(200, 256), integers(256), random_norm(256, 3)
    scratch = poisoned(planes)
    first, second = run(a, planes, norm, scratch, softcap=9.0), run(a, planes, norm, scratch, softcap=9.0)
    alone = a.clone()
    alone[1:] = NAN
    single = run(alone, planes, norm, scratch, softcap=9.0)
    for name, value in first.items():
        assert torch.equal(second[name], value)
        assert torch.equal(single[name][0], value[0])


def test_short_vocabulary_and_no_logits() -> None:
    torch.manual_seed(6)
    planes, a = exact_planes(200), integers()
    ids = torch.randperm(5000)[:200].sort().values.to(torch.int32)
    a[3, 0] = NAN
    out = torch.full((16,), -9, dtype=torch.int32)
    head(a, group_sums(a), planes, None, out, HeadScratch(CPU, [exact_planes(100), planes]), ids=ids)
    assert out[3] == -1
    live = torch.arange(16) != 3
    assert torch.equal(out[live], ids[oracle(a, planes, None).argmax(-1)][live])


def test_reference() -> None:
    torch.manual_seed(8)
    planes, a, norm = random_planes("q4_k", 300, 256), torch.randn(16, 256), random_norm(256, 3)
    ids = torch.arange(0, 900, 3, dtype=torch.int32)
    want = oracle(a, planes, norm, 0.5, 30.0)
    out, logits = torch.zeros(16, dtype=torch.int32), torch.zeros(16, 300)
    a[2, 2] = NAN
    head_reference(a, group_sums(a), planes, norm, out, None, logits, scale=0.5, softcap=30.0, ids=ids)
    live = torch.arange(16) != 2
    torch.testing.assert_close(logits[live].double(), want[live], rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    assert torch.equal(out[live].long(), 3 * want.argmax(-1)[live])
    assert int(out[2]) == -1
