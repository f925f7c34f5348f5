"""Embedding gather in the interpreter against float64 maths on the decoded table."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from localdflash.kernels.cuda.embed import embed, embed_reference
from localdflash.kernels.cuda.planes import SUPER, Planes, pack_halves

EPS = 1e-5
KINDS: dict[str, dict[str, Any]] = {
    "q4_k": {"rows": 32, "scaling": "byte4", "minimum": True},
    "q5_k": {"rows": 32, "scaling": "byte4", "minimum": True, "high": torch.uint8},
    "q6_k": {"rows": 16, "scaling": "byte4", "high": torch.uint8, "zero": 32},
    "q4_0": {"rows": 32, "scaling": "half4", "zero": 8},
    "q4_1": {"rows": 32, "scaling": "half4", "minimum": True},
    "q8_0": {"rows": 32, "scaling": "half4", "high": torch.int16, "zero": 128},
    "w4 g128": {"rows": 32, "scaling": "block", "minimum": True},
    "w8 g128": {"rows": 32, "scaling": "block", "high": torch.int16, "zero": 128},
    "fp8": {"rows": 32, "scaling": "block", "high": torch.int16, "code": "e4m3"},
    "mxfp4": {"rows": 32, "scaling": "half4", "code": "e2m1"},
    "nvfp4": {"rows": 16, "scaling": "half4", "code": "e2m1"},
}


def bits(dtype: torch.dtype, *shape: int) -> Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, dtype=torch.int64).to(dtype)


def random_planes(
    n: int,
    k: int,
    rows: int,
    scaling: Any,
    minimum: bool = False,
    high: torch.dtype | None = None,
    zero: int = 0,
    code: Any = "int",
) -> Planes:
    padded, blocks = -n % 128 + n, -(-k // (4 * rows))
    scale, supers, low = torch.randn(blocks, padded), None, torch.randn(blocks, padded) if minimum else None
    if scaling == "half4":
        scale = pack_halves(torch.randn(blocks, 2, padded), torch.randn(blocks, 2, padded))
        low = pack_halves(torch.randn(blocks, 2, padded), torch.randn(blocks, 2, padded)) if minimum else None
    if scaling == "byte4":
        pairs = -(-blocks * 4 * rows // SUPER), padded
        scale, supers = bits(torch.int32, blocks, padded), pack_halves(torch.randn(pairs), torch.randn(pairs))
        low = bits(torch.int32, blocks, padded) if minimum else None
    base = bits(torch.int16, blocks * rows, padded)
    top = None if high is None else bits(high, blocks * rows, padded)
    if code == "e4m3" and top is not None:
        top &= -0x1112  # 0xEEEE: no exponent of all ones, so no NaN
    return Planes(n, k, rows, base, top, scaling, scale, supers, low, zero, code)


def buffers(h: int, k: int, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    x, squares = torch.full((16, h), float("nan")), torch.full((-(-h // 128), 16), float("nan"))
    return {"x": x, "a": torch.zeros(16, k, dtype=dtype), "sums": torch.zeros(k // 32, 16), "squares": squares}


def oracle(ids: Tensor, table: Planes, gain: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    x = table.dense.double()[ids.long()] * scale
    return x, x * gain.double() / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


@contextmanager
def reversed_programs() -> Iterator[None]:
    """Let the interpreter, which runs the programs of a grid one by one, take them in reverse order."""
    forward = interpreter_builder.set_grid_idx

    def backward(x: int, y: int, z: int) -> None:
        nx, ny, nz = interpreter_builder.grid_dim
        forward(nx - 1 - x, ny - 1 - y, nz - 1 - z)

    interpreter_builder.set_grid_idx = backward
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = forward


def check(out: dict[str, Tensor], ids: Tensor, table: Planes, gain: Tensor, scale: float, tolerance: float) -> None:
    x, a = oracle(ids, table, gain, scale)
    h = table.k
    size = x.abs().amax(-1, keepdim=True)
    assert ((out["x"] - x).abs() <= 1e-6 * size).all()
    assert ((out["a"][:, :h] - a).abs() <= tolerance * a.abs() + 1e-6).all()
    assert not out["a"][:, h:].any()
    torch.testing.assert_close(out["squares"].sum(0).double(), x.square().sum(-1), rtol=1e-5, atol=0)
    assert not out["squares"][1:].any()
    want = out["a"].double().view(16, -1, 32).sum(-1).t()
    torch.testing.assert_close(out["sums"].double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table(kind: str) -> None:
    torch.manual_seed(0)
    table, gain = random_planes(200, 512, **KINDS[kind]), torch.randn(512)
    ids = torch.randint(0, 200, (16,), dtype=torch.int32)
    out = buffers(512, 512)
    embed(ids, table, gain, **out, scale=1.0, eps=EPS)
    check(out, ids, table, gain, 1.0, 2**-10)


@pytest.mark.parametrize(("h", "kind"), [(320, "nvfp4"), (96, "q8_0"), (40, "w4 g128")])
def test_ragged_width_and_scale(h: int, kind: str) -> None:
    torch.manual_seed(1)
    table, gain = random_planes(130, h, **KINDS[kind]), torch.randn(h)
    ids = torch.randint(0, 130, (16,), dtype=torch.int32)
    out = buffers(h, -h % 128 + h)
    embed(ids, table, gain, **out, scale=50.6, eps=EPS)
    check(out, ids, table, gain, 50.6, 2**-10)


def test_reference_is_accurate_in_float32() -> None:
    torch.manual_seed(2)
    table, gain = random_planes(150, 256, **KINDS["q6_k"]), torch.randn(256)
    ids = torch.randint(0, 150, (16,), dtype=torch.int32)
    out = buffers(256, 384, torch.float32)
    embed_reference(ids, table, gain, **out, scale=3.0, eps=EPS)
    check(out, ids, table, gain, 3.0, 2e-6)


def test_rows_are_independent_and_dead_ids_harmless() -> None:
    torch.manual_seed(3)
    table, gain = random_planes(100, 256, **KINDS["q4_k"]), torch.randn(256)
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
