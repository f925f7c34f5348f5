"""Embedding gather in the interpreter against float64 maths on the decoded table."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda.embed import embed, embed_reference
from localdflash.kernels.cuda.planes import Planes
from tests.support.interpreter import reversed_programs
from tests.support.random_planes import group_sums, random_planes

EPS = 1e-5


def buffers(h: int, k: int, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    x, squares = torch.full((16, h), float("nan")), torch.full((-(-h // 128), 16), float("nan"))
    return {"x": x, "a": torch.zeros(16, k, dtype=dtype), "sums": torch.zeros(k // 32, 16), "squares": squares}


def check(op: Callable[..., None], table: Planes, scale: float, dtype: torch.dtype = torch.float16) -> None:
    h = table.k
    ids, gain = torch.randint(0, table.n, (16,), dtype=torch.int32), torch.randn(h)
    out = buffers(h, -h % 128 + h, dtype)
    op(ids, table, gain, **out, scale=scale, eps=EPS)
    x = table.dense.double()[ids.long()] * scale
    a = x * gain.double() / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
    assert ((out["x"] - x).abs() <= 1e-6 * x.abs().amax(-1, keepdim=True)).all()
    tolerance = 2**-10 if dtype == torch.float16 else 2e-6
    assert ((out["a"][:, :h] - a).abs() <= tolerance * a.abs() + 1e-6).all()
    assert not out["a"][:, h:].any()
    torch.testing.assert_close(out["squares"].sum(0).double(), x.square().sum(-1), rtol=1e-5, atol=0)
    assert not out["squares"][1:].any()
    torch.testing.assert_close(out["sums"], group_sums(out["a"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "h"), [*((name, 256) for name in ("q4_1", "q4_k", "q6_k", "q8_0")), ("nvfp4", 320), ("int4 by 128", 128)]
)
def test_every_scaling_of_a_table(name: str, h: int) -> None:
    torch.manual_seed(0)
    check(embed, random_planes(name, 200, h), 1.0 if h == 256 else 50.6)


def test_reference_is_accurate_in_float32() -> None:
    torch.manual_seed(2)
    check(embed_reference, random_planes("q6_k", 150, 256), 3.0, torch.float32)


def test_rows_are_independent_and_dead_ids_harmless() -> None:
    torch.manual_seed(3)
    table, gain = random_planes("q4_k", 100, 256), torch.randn(256)
    ids = torch.randint(0, 100, (16,), dtype=torch.int32)
    alone, full, again = buffers(256, 256), buffers(256, 256), buffers(256, 256)
    embed(ids, table, gain, **full, scale=1.0, eps=EPS)
    dead = torch.tensor([-1, 100, -(2**31), 2**31 - 1] * 4, dtype=torch.int32)
    dead[0] = ids[0]
    with reversed_programs():
        embed(dead, table, gain, **alone, scale=1.0, eps=EPS)
    for name in ("x", "a"):
        assert torch.equal(alone[name][0], full[name][0])
    for name in ("sums", "squares"):
        assert torch.equal(alone[name][:, 0], full[name][:, 0])
    embed_reference(dead, table, gain, **again, scale=1.0, eps=EPS)
    torch.testing.assert_close(again["x"], alone["x"])
