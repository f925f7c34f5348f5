"""Attention in the interpreter, against the definition in float64; and the bits that identity rests on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from localdflash.kernels.cuda.attention import (
    CHUNK,
    HALVES_OF_E4M3,
    HALVES_OF_INT8,
    Mask,
    Scratch,
    attention,
    attention_reference,
)
from localdflash.kernels.cuda.kv_cache import Cache

CPU, NAN = torch.device("cpu"), float("nan")
KINDS = (torch.float16, torch.int8, torch.float8_e4m3fn)
CAPACITY = 700


@dataclass
class Case:
    """One call. Queries, keys and values belong to positions, so that cases at several starts share them."""

    start: int
    mask: Mask = "chain"
    dtype: torch.dtype = torch.float16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    live: int = 16
    window: int = 0
    block: int = 16
    splits: int = 3
    spoil: int = 0  # seed of what rows that are not live hold
    size: float = 1.0  # of values
    out: Tensor = field(init=False)
    sums: Tensor = field(init=False)
    scratch: Scratch = field(init=False)
    cache: Cache = field(init=False)
    q: Tensor = field(init=False)

    def __post_init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        shape = (CAPACITY + 16, self.kv_heads, self.head_dim)
        self.cache = Cache.empty(1, *shape, self.dtype, CPU).layer(0)
        k, v = torch.randn(shape, generator=rng), torch.randn(shape, generator=rng) * self.size
        queries = torch.randn(CAPACITY + 16, self.heads, self.head_dim, generator=rng)
        self.q = queries[self.start : self.start + 16].to(torch.float32 if self.dtype.itemsize == 4 else torch.float16)
        rng.manual_seed(self.spoil)
        dead = slice(self.start + self.live, self.start + 16)
        for rows in (k[dead], v[dead], self.q[self.live :]):
            rows.copy_(torch.randn(rows.shape, generator=rng) * 30)
        self.cache.write(torch.arange(len(k)), k, v)
        self.poison(slice(self.start + 16, None))
        width = self.heads * self.head_dim
        self.out = torch.full((16, width + 64), NAN, dtype=self.q.dtype)
        self.sums = torch.full((width // 32 + 2, 16), NAN)
        self.scratch = Scratch(CPU, self.heads, self.head_dim, max(self.splits, 3))
        self.scratch.partial.fill_(NAN)
        self.scratch.stats.fill_(NAN)

    def poison(self, slots: slice) -> None:
        for tensor in (self.cache.k, self.cache.v, self.cache.k_scale, self.cache.v_scale):
            if tensor is not None and tensor.dtype != torch.int8:
                tensor[slots] = NAN

    def run(self, op: Callable[..., None] = attention) -> "Case":
        start = torch.tensor([self.start], dtype=torch.int32)
        op(self.q, self.cache, start, self.out, self.sums, self.scratch, self.mask, self.block,
           window=self.window, splits=self.splits)  # fmt: skip
        return self

    @property
    def attended(self) -> Tensor:
        return self.out[: self.live, : self.heads * self.head_dim]

    def sees(self, t: int, slot: int) -> bool:
        """The masks, from their definition."""
        node, distance = slot - self.start, self.start + t - slot
        if self.window and abs(distance) >= self.window:
            return False
        return node <= t if self.mask == "chain" else node < self.block

    def expected(self) -> Tensor:
        total = self.start + 16
        keys, values = (
            (codes[:total].double() * (1 if scale is None else scale[:total, :, None])).repeat_interleave(
                self.heads // self.kv_heads, 1
            )
            for codes, scale in ((self.cache.k, self.cache.k_scale), (self.cache.v, self.cache.v_scale))
        )
        seen = torch.tensor([[self.sees(t, slot) for slot in range(total)] for t in range(self.live)])
        scores = torch.einsum("thd,nhd->htn", self.q[: self.live].double(), keys) / self.head_dim**0.5
        weights = scores.masked_fill(~seen, -float("inf")).softmax(-1)
        return torch.einsum("htn,nhd->thd", weights, values).flatten(1)

    def check(self, tolerance: float) -> None:
        """Output, its sums, and what must not be touched."""
        torch.testing.assert_close(self.attended.double(), self.expected(), rtol=0, atol=tolerance)
        width = self.heads * self.head_dim
        sums = self.attended.double().unflatten(1, (-1, 32)).sum(-1).t()
        torch.testing.assert_close(self.sums[: width // 32, : self.live].double(), sums, rtol=0, atol=1e-5)
        assert self.out[:, width:].isnan().all()
        assert self.sums[width // 32 :].isnan().all()
        assert not self.scratch.counter.any()


@contextmanager
def reversed_arrival() -> Iterator[None]:
    """The interpreter runs the programs of a grid in turn: the other way round."""
    forward = interpreter_builder.set_grid_idx

    def backward(*index: int) -> Any:
        return forward(*(size - 1 - i for size, i in zip(interpreter_builder.grid_dim, index, strict=True)))

    interpreter_builder.set_grid_idx = backward
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = forward


@pytest.fixture
def ordered_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products summed in the order of k. The matrix product of numpy rounds a row by its place in the matrix."""

    def dot(a: TensorHandle, b: TensorHandle, acc: TensorHandle, *_: Any) -> TensorHandle:
        products = a.data.astype(np.float32)[:, :, None] * b.data.astype(np.float32)
        return TensorHandle(products.sum(1) + acc.data, acc.dtype.scalar)

    monkeypatch.setattr(interpreter_builder, "create_dot", dot)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize(("start", "live"), [(0, 1), (10, 16), (250, 16), (300, 7)])
def test_chain(start: int, live: int, dtype: torch.dtype) -> None:
    Case(start, dtype=dtype, live=live).run().check(2e-3)


@pytest.mark.parametrize(
    "case",
    [
        Case(600, splits=9),
        Case(600, "block", torch.int8, splits=9),
        Case(0, "block", live=10, block=10),
        Case(250, "block", live=10, block=10),
        Case(250, "block", torch.float8_e4m3fn, live=8, block=8),
        Case(250, window=5),
        Case(600, window=300),
        Case(600, "block", window=9),
        Case(300, "block", window=40, live=10, block=10),
        Case(3, "block", window=100),
        Case(300, heads=2, head_dim=128),
        Case(300, heads=4, kv_heads=1, head_dim=128, dtype=torch.int8),
        Case(10, heads=5, kv_heads=1),
        Case(300, heads=5, kv_heads=1, splits=9),
    ],
    ids=lambda c: f"{c.mask}-{c.start}-{c.window}-{c.heads}x{c.head_dim}-{c.dtype}",
)
def test_masks_and_shapes(case: Case) -> None:
    case.run().check(2e-3)


def test_small_values_keep_their_precision() -> None:
    """Weights times a scale of 1e-5 would be subnormal in float16."""
    case = Case(300, dtype=torch.int8, size=1e-3).run()
    case.check(5e-7)


def test_scores_far_below_zero() -> None:
    """Nothing is compared with zero on the way, where the weights of such scores would vanish."""
    case = Case(300)
    case.q.fill_(8)
    case.cache.k[:316].abs_().mul_(-8)
    case.run().check(2e-3)


@pytest.mark.parametrize("case", [Case(600), Case(600, window=300), Case(250, "block", live=8, block=8)])
def test_the_number_of_chunks_launched_does_not_show(case: Case) -> None:
    first = case.run()
    again = Case(case.start, case.mask, window=case.window, live=case.live, block=case.block, splits=9).run()
    assert torch.equal(first.attended, again.attended)
    assert torch.equal(first.sums[:8, : case.live], again.sums[:8, : case.live])


def test_two_runs_and_the_order_of_arrival() -> None:
    case = Case(600).run()
    once = case.attended.clone()
    assert torch.equal(case.run().attended, once)
    with reversed_arrival():
        assert torch.equal(Case(600).run().attended, once)


@pytest.mark.usefixtures("ordered_dot")
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_row_of_a_block_is_plain_decoding(dtype: torch.dtype) -> None:
    """Across the border of a chunk, and with other numbers of programs."""
    block = Case(CHUNK - 6, dtype=dtype).run().attended
    for t in (0, 5, 6, 15):
        plain = Case(CHUNK - 6 + t, dtype=dtype, live=1, spoil=t, splits=9 if t > 5 else 2).run()
        assert torch.equal(plain.attended[0], block[t])


@pytest.mark.usefixtures("ordered_dot")
def test_rows_do_not_depend_on_the_rows_after_them() -> None:
    rows = [Case(300, live=live, spoil=live).run().attended[0] for live in (1, 7, 16)]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize(
    ("mask", "options"),
    [("chain", {}), ("block", {"live": 10, "block": 10}), ("chain", {"window": 20}), ("block", {"window": 9})],
)
def test_the_reference(mask: Mask, options: dict[str, Any], dtype: torch.dtype) -> None:
    for start in (0, 300):
        Case(start, mask, dtype, **options).run(attention_reference).check(1e-6 if dtype == torch.float32 else 2e-3)


def test_a_row_of_the_reference_is_plain_decoding() -> None:
    block = Case(250, dtype=torch.float32).run(attention_reference).attended
    for t in (0, 6, 15):
        plain = Case(250 + t, live=1, dtype=torch.float32, spoil=t).run(attention_reference)
        assert torch.equal(plain.attended[0], block[t])


def test_a_scratch_that_is_too_small_is_refused() -> None:
    case = Case(0)
    case.splits = 4
    with pytest.raises(AssertionError, match="scratch"):
        case.run()


def halves(words: np.ndarray) -> np.ndarray:
    return words.view(np.float16)


def permute_bytes(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """PTX `prmt`: each nibble of the selector picks one of the eight bytes of a, then b."""
    pool = np.concatenate((a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)), 1)
    picked = [pool[:, int(selector[0]) >> 4 * i & 7] for i in range(4)]
    return np.stack(picked, 1).reshape(-1).view(np.uint32)


def test_the_assembly_that_unpacks_int8() -> None:
    """The interpreter has no inline assembly, so that its text is executed here, on every code in every place."""
    codes = np.stack([np.roll(np.arange(256, dtype=np.uint8), i) for i in range(4)], 1).reshape(-1)
    registers = {"$2": codes.view(np.uint32)}
    execute: dict[str, Callable[..., np.ndarray]] = {
        "mov.b32": lambda a: a,
        "xor.b32": lambda a, b: a ^ b,
        "prmt.b32": permute_bytes,
        "sub.rn.f16x2": lambda a, b: (halves(a) - halves(b)).view(np.uint32),
    }
    for line in HALVES_OF_INT8.value.splitlines()[2:-1]:
        name, operands = line.strip().rstrip(";").split(" ", 1)
        target, *sources = operands.split(", ")
        values = [registers[x] if x in registers else np.full(256, int(x, 0), np.uint32) for x in sources]
        registers[target] = execute[name](*values)
    got = np.stack((registers["$0"], registers["$1"]), 1).reshape(-1)
    assert np.array_equal(halves(got), codes.view(np.int8).astype(np.float16))


def test_the_assembly_that_unpacks_e4m3_keeps_the_order() -> None:
    """One instruction converts a pair; what can go wrong is which pair goes where."""
    lines = [line.strip() for line in HALVES_OF_E4M3.value.splitlines()[1:-1]]
    assert lines == [
        ".reg .b16 low, high;",
        "mov.b32 {low, high}, $2;",
        "cvt.rn.f16x2.e4m3x2 $0, low;",
        "cvt.rn.f16x2.e4m3x2 $1, high;",
    ]
