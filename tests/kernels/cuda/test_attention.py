"""Attention in the interpreter, against the definition in float64; and the bits that identity rests on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from localdflash.kernels.cuda.attention import CHUNK, HALVES_OF_INT8, Mask, Scratch, attention, attention_reference
from localdflash.kernels.cuda.kv_cache import Cache
from tests.kernels.cuda.ptx_emulator import run_ptx
from tests.support.interpreter import ordered_dot, reversed_programs

CPU, NAN = torch.device("cpu"), float("nan")
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
        for tensor in (self.cache.k, self.cache.v, self.cache.k_scale, self.cache.v_scale):
            if tensor is not None and tensor.dtype != torch.int8:
                tensor[self.start + 16 :] = NAN
        width = self.heads * self.head_dim
        self.out = torch.full((16, width + 64), NAN, dtype=self.q.dtype)
        self.sums = torch.full((width // 32 + 2, 16), NAN)
        self.scratch = Scratch(CPU, self.heads, self.head_dim, max(self.splits, 3))
        self.scratch.partial.fill_(NAN)
        self.scratch.stats.fill_(NAN)

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


@pytest.fixture
def _ordered() -> Iterator[None]:
    with ordered_dot():
        yield


@pytest.mark.parametrize(
    "case",
    [
        Case(0, live=1, dtype=torch.int8),
        Case(250, "block", torch.float8_e4m3fn, live=8, block=8),
        Case(600, window=300),
        Case(3, "block", window=100),
        Case(300, heads=4, kv_heads=1, head_dim=128, dtype=torch.int8),
        Case(10, heads=5, kv_heads=1),
    ],
    ids=lambda c: f"{c.mask}-{c.start}-{c.window}-{c.heads}x{c.head_dim}-{c.dtype}",
)
def test_masks_and_shapes(case: Case) -> None:
    case.run().check(2e-3)


def test_small_values_and_scores_far_below_zero_keep_their_precision() -> None:
    """Weights times a scale of 1e-5 would be subnormal in float16; nothing is compared with zero on the way."""
    Case(300, dtype=torch.int8, size=1e-3).run().check(5e-7)
    case = Case(300)
    case.q.fill_(8)
    case.cache.k[:316].abs_().mul_(-8)
    case.run().check(2e-3)


def test_neither_two_runs_nor_the_order_of_arrival_nor_the_number_of_chunks_launched_show() -> None:
    case = Case(300).run()
    once, sums = case.attended.clone(), case.sums[:8].clone()
    assert torch.equal(case.run().attended, once)
    with reversed_programs():
        again = Case(300, splits=9).run()
    assert torch.equal(again.attended, once)
    assert torch.equal(again.sums[:8], sums)


@pytest.mark.usefixtures("_ordered")
@pytest.mark.parametrize("dtype", [torch.int8, pytest.param(torch.float16, marks=pytest.mark.nightly)], ids=str)
def test_a_row_of_a_block_is_plain_decoding(dtype: torch.dtype) -> None:
    """Across the border of a chunk, and with other numbers of programs."""
    block = Case(CHUNK - 6, dtype=dtype).run().attended
    for t in (5, 6):
        plain = Case(CHUNK - 6 + t, dtype=dtype, live=1, spoil=t, splits=9 if t > 5 else 2).run()
        assert torch.equal(plain.attended[0], block[t])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_the_reference(dtype: torch.dtype) -> None:
    tolerance = 1e-6 if dtype == torch.float32 else 2e-3
    for options in ({}, {"mask": "block", "live": 10, "block": 10}, {"window": 20}, {"mask": "block", "window": 9}):
        Case(300, dtype=dtype, **options).run(attention_reference).check(tolerance)
    block = Case(250, dtype=dtype).run(attention_reference).attended
    for t in (0, 15):
        plain = Case(250 + t, live=1, dtype=dtype, spoil=t).run(attention_reference)
        assert torch.equal(plain.attended[0], block[t]), "a row is what plain decoding computes"


def test_the_assembly_that_unpacks_int8() -> None:
    """The interpreter has no inline assembly, so that its text is emulated, on every code in every place."""
    codes = np.stack([np.roll(np.arange(256, dtype=np.uint8), i) for i in range(4)], 1).reshape(-1)
    out = run_ptx(HALVES_OF_INT8.value, **{"$2": codes.view(np.uint32)})
    got = np.stack((out["$0"], out["$1"]), 1).reshape(-1)
    assert np.array_equal(got.view(np.float16), codes.view(np.int8).astype(np.float16))
