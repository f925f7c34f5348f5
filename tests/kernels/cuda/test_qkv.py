"""Heads, their norm, RoPE and the cache write in the interpreter, against float64 maths from the definition."""

import dataclasses

import pytest
import torch
from torch import Tensor

import localdflash.kernels.cuda.qkv as module
from localdflash.backends.reference import decoder as torch_decoder
from localdflash.base.errors import ModelError, UsageError
from localdflash.kernels.cuda.kv_cache import CODES, Cache, check_type, encode
from localdflash.kernels.cuda.qkv import HeadRange, qkv, qkv_reference
from localdflash.kernels.cuda.rope import rope_tables, rotate
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from tests.support.random_planes import EPS, exact_norm_factor, group_sums, random_norm, random_planes, spoil_rows

CPU = torch.device("cpu")
THETA, START, SLOTS = 10000.0, 21, 40
ALL = HeadRange(0, 4, 2, 1)


@dataclasses.dataclass
class Case:
    """Everything that a call reads, and what it writes."""

    head_dim: int = 64
    k: int = 128
    part: HeadRange = ALL
    layers: int = 0  # of a stack
    dtype: torch.dtype = torch.float16  # of the cache
    wide: torch.dtype = torch.float16  # of a and q_out
    head_norm: bool = True
    normed: bool = True  # whether a norm precedes
    with_bias: bool = False

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        d = self.head_dim
        planes = self.planes = random_planes("q4_1", self.part.count * d, self.k)
        self.a = torch.zeros(16, planes.padded_k, dtype=self.wide)
        self.a[:, : self.k] = torch.randn(16, self.k)
        self.sums = group_sums(self.a)
        self.norm = random_norm(200, 2, EPS) if self.normed else None
        gains = (max(self.layers, 1), d)
        self.q_gain = torch.rand(d) + 0.5 if self.head_norm else None
        self.k_gain = torch.rand(gains).squeeze(0) + 0.5 if self.head_norm else None
        self.bias = torch.randn(self.part.count * d) if self.with_bias else None
        self.rope = rope_tables(SLOTS, d, THETA, CPU)
        self.start = torch.tensor([START], dtype=torch.int32)

    def run(self, kernel: bool = True) -> tuple[Tensor, Cache]:
        """Queries and cache after a call."""
        stack = Cache.empty(max(self.layers, 1), SLOTS, self.part.kv_heads, self.head_dim, self.dtype, CPU)
        cache = stack if self.layers else stack.layer(0)
        q = torch.zeros(16, max(self.part.q_heads, 1), self.head_dim, dtype=self.wide)
        cut: SplitPlan = vars(module)["plan"](self.planes.n, self.planes.padded_k, CPU, BN=self.head_dim)
        workspace = SplitWorkspace(CPU, [cut])
        queries = q if self.part.q_heads else None
        call = qkv if kernel else qkv_reference
        call(self.a, self.sums, self.planes, self.norm, self.part, self.q_gain, self.k_gain, self.rope, self.start,
             queries, cache, workspace, self.bias, EPS)  # fmt: skip
        assert not workspace.counters.any()
        return q, stack

    def heads(self) -> Tensor:
        """Return the oracle's heads before their norm: float64 [16, count, D]."""
        product = self.a[:, : self.k].double() @ self.planes.dense.double().T * exact_norm_factor(self.norm)
        if self.bias is not None:
            product += self.bias.double()
        return product.view(16, self.part.count, self.head_dim)

    def turned(self, head: Tensor, gain: Tensor | None) -> Tensor:
        """A head [16, D] normed and rotated, float64."""
        if gain is not None:
            head = head / (head.square().mean(1, keepdim=True) + EPS).sqrt() * gain.double()
        pair = torch.view_as_complex(torch.stack(head.chunk(2, 1), -1))
        speed = THETA ** (-torch.arange(self.head_dim // 2).double() / (self.head_dim // 2))
        angle = (START + torch.arange(16)).double().unsqueeze(1) * speed
        return torch.cat((*torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)).unbind(-1),), 1)


@pytest.fixture(autouse=True)
def _split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number of programs that share a tile; 1 unless a test changes it."""
    split = getattr(request, "param", 1)
    monkeypatch.setattr(module, "plan", lambda n, _k, _device, BN: SplitPlan(n // BN, BN, split))


def close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal up to the rounding of the stored type: a part of the value, or of the largest value of the head."""
    peak = expected.abs().amax(-1, keepdim=True)
    bound = {
        torch.float32: 1e-5 * peak,
        torch.float16: 1e-3 * expected.abs() + 1e-5 * peak,
        torch.int8: 0.51 / 127 * peak,
        torch.float8_e4m3fn: 0.51 / 8 * expected.abs() + 1e-5 * peak,
    }[dtype]
    assert ((got.double() - expected).abs() <= bound).all()


def check(case: Case, kernel: bool = True) -> None:
    """All Q, K and V of a call against the oracle; all other slots untouched."""
    q, stack = case.run(kernel)
    keys, values = stack.read()
    live = slice(START, START + 16)
    for index, head in enumerate(case.heads().unbind(1), case.part.first):
        layer, place = divmod(index, case.part.heads)
        gain = case.k_gain[layer] if case.layers and case.k_gain is not None else case.k_gain
        key = place - case.part.q_heads
        if key < 0:
            close(q[:, place], case.turned(head, case.q_gain), case.wide)
        elif key < case.part.kv_heads:
            close(keys[layer, live, key], case.turned(head, gain), case.dtype)
        else:
            close(values[layer, live, key - case.part.kv_heads], head, case.dtype)
    for cached in (keys, values):
        assert not cached[:, :START].any()
        assert not cached[:, START + 16 :].any()


def same(one: tuple[Tensor, Cache], other: tuple[Tensor, Cache], rows: slice = slice(None)) -> None:
    """Bit for bit the same rows of queries, codes and scales."""
    slots = slice(START, START + 16)
    assert torch.equal(one[0][rows], other[0][rows])
    for mine, its in zip(dataclasses.astuple(one[1]), dataclasses.astuple(other[1]), strict=True):
        if mine is not None:
            kept = mine[:, slots][:, rows].view(torch.uint8), its[:, slots][:, rows].view(torch.uint8)
            assert torch.equal(*kept)


@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, torch.float16), (128, torch.int8), (64, torch.float8_e4m3fn)], ids=str
)
def test_kernel(head_dim: int, dtype: torch.dtype) -> None:
    check(Case(head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("_split", [3], indirect=True)
def test_split_of_k_with_an_empty_part() -> None:
    case = Case(k=512, part=HeadRange(2, 1, 2, 1))  # four blocks of 128: two, two, none
    check(case)
    same(case.run(), case.run())


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(
    "case",
    [
        Case(head_norm=False, with_bias=True, normed=False),  # Llama has no norm per head, Qwen2 a bias
        Case(part=HeadRange(0, 3, 2, 1)),
        Case(part=HeadRange(3, 3, 0, 1), layers=3, normed=False),  # K and V of all layers of a drafter
    ],
    ids=["bias", "some heads", "a stack"],
)
def test_heads_of_other_kinds(case: Case, kernel: bool) -> None:
    check(case, kernel)


@pytest.mark.parametrize(("_split", "live"), [(2, 7)], indirect=["_split"])
def test_rows_do_not_depend_on_the_others(live: int) -> None:
    case = Case(dtype=torch.int8, k=256)
    whole = case.run()
    spoil_rows(live, case.a, case.sums.T, case.norm)
    poisoned = case.run()
    same(whole, poisoned, slice(live))
    assert poisoned[0][live:].isnan().all()  # a query carries the NaN on
    assert all(tensor.float().isfinite().all() for tensor in poisoned[1].read())  # the cache never holds one


def test_values_past_the_range_of_float16_are_its_largest() -> None:
    rounded, scale = encode(torch.tensor([[1e6, -1e6, float("nan"), 2.0]]), torch.float16)
    assert (rounded.tolist(), scale) == ([[65504.0, -65504.0, 0.0, 2.0]], None)
    case = Case(normed=False, with_bias=True)
    assert case.bias is not None
    case.bias[-1], case.bias[-2] = 1e6, -1e6
    assert case.run()[1].v[0, START, 0, -2:].tolist() == [-65504.0, 65504.0]


@pytest.mark.parametrize("dtype", CODES)
def test_codes_are_the_nearest(dtype: torch.dtype) -> None:
    """Every multiple of half a step, ties among them, through the kernel: V is the bias alone."""
    case = Case(normed=False, with_bias=True, dtype=dtype, part=HeadRange(3, 1, 2, 1))
    assert case.bias is not None
    case.a.zero_()
    case.sums.zero_()
    largest = CODES[dtype]
    exponent = torch.arange(-12, 9).repeat_interleave(3)
    ties = torch.ldexp(1 + torch.tensor([1 / 16, 3 / 16, 13 / 16]).repeat(21), exponent)  # half-way between codes
    grid = torch.cat((torch.tensor([largest]), ties)) if largest == 448 else torch.arange(64) * 2.5 - 30
    case.bias.copy_(grid.clamp(-largest, largest))
    case.bias[0] = largest  # makes the scale 1
    got = case.run()[1]
    expected = case.bias.round() if dtype == torch.int8 else case.bias.to(dtype).float()
    assert got.v_scale is not None
    assert (got.v_scale[0, START : START + 16] == 1).all()
    assert torch.equal(got.v[0, START, 0].float(), expected)


def test_rope_turns_as_the_decoder_does_slower_by_factors_and_longer_by_a_magnitude() -> None:
    rows, positions = torch.randn(16, 2, 64), torch.arange(16) + START
    plain, slow = rope_tables(SLOTS, 64, THETA, CPU), rope_tables(9, 64, THETA, CPU, torch.full((32,), 4.0))
    cos, sin = torch_decoder.rotary(positions, 64, THETA)
    expected = torch_decoder.rotate(rows.transpose(0, 1), cos, sin).transpose(0, 1)
    torch.testing.assert_close(rotate(rows, plain, positions), expected, rtol=0, atol=0)
    torch.testing.assert_close(slow.cos[8], plain.cos[2])
    torch.testing.assert_close(slow.sin[4], plain.sin[1])
    longer = rope_tables(SLOTS, 64, THETA, CPU, None, 1.5)
    torch.testing.assert_close(rotate(rows, longer, positions), 1.5 * rotate(rows, plain, positions))


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.part = HeadRange(0, 5, 2, 1)
    with pytest.raises(ModelError, match=r"5 heads of 64 .* 256 rows"):
        case.run()
    case.head_dim = 96
    with pytest.raises(ModelError, match="head dimension: 96"):
        case.run()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 6))
    check_type(torch.int8, torch.device("cuda"))
    check_type(torch.float8_e4m3fn, CPU)
    with pytest.raises(UsageError, match=r"8\.9.*int8"):
        check_type(torch.float8_e4m3fn, torch.device("cuda"))
