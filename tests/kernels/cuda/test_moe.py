"""The mixture of experts in the interpreter against Hugging Face's Qwen3-MoE block and float64 maths."""

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from localdflash.backends.cuda.repack.gguf_planes import join, planes_of_blocks, scaled
from localdflash.kernels.cuda import moe
from localdflash.kernels.cuda.moe import Routing, router_plan
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.residual import Tap
from localdflash.kernels.cuda.split_k import SplitWorkspace
from localdflash.models.weights.ggml_types import GGMLType
from tests.support.interpreter import reversed_programs

CPU = torch.device("cpu")
EPS = 1e-6
NAN = float("nan")
# Byte offsets of the half-precision scales in a block.
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}


def stack(kind: str, experts: int, n: int, k: int, seed: int) -> Planes:
    """Random experts [n, k] of a GGUF type: any codes, and scales that make weights of about 0.1."""
    rng = np.random.default_rng(seed)
    per_block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (experts * n * (k // per_block), size), dtype=np.uint8)
    largest = {"Q8_0": 2e-3, "Q4_0": 3e-2, "Q4_K": 5e-4, "Q6_K": 1e-4}[kind]
    for offset in HALVES[kind]:
        scale = rng.uniform(largest / 2, largest, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scale.view(np.uint8)
    return planes_of_blocks(torch.from_numpy(blocks), GGMLType[kind], n, k, experts)


@dataclass
class Layer:
    """A mixture of experts with its input and all its buffers."""

    router: Tensor
    gate_up: Planes
    down: Planes
    norm: Norm
    gain: Tensor  # of the next norm
    a: Tensor
    sums: Tensor
    x: Tensor
    live: Tensor
    routing: Routing
    workspace: SplitWorkspace
    h: Tensor
    h_sums: Tensor
    y: Tensor
    a_out: Tensor
    sums_out: Tensor
    squares_out: Tensor
    normalise: bool

    def run(self, suffix: str = "", tap: Tap | None = None) -> None:
        """All four operations; `suffix` "_reference" for those in torch."""
        route, gate_up, down, combine = (
            getattr(moe, name + suffix) for name in ("route", "experts_gate_up", "experts_down", "combine")
        )
        route(self.a, self.router, self.norm, self.live, self.routing, self.workspace, self.normalise)
        gate_up(self.a, self.sums, self.gate_up, self.norm, self.routing, self.h, self.h_sums)
        down(self.h, self.h_sums, self.down, self.routing, self.y)
        outputs = self.a_out, self.sums_out, self.squares_out
        combine(self.y, self.routing, self.x, self.gain, self.norm, *outputs, tap=tap)

    @property
    def normed(self) -> Tensor:
        """The block's input as the kernels see it, with the norm finished: float32 [16, H]."""
        now, before = (
            (squares.double().sum(0) / self.norm.size + EPS).rsqrt()
            for squares in (self.norm.squares, self.norm.before)
        )
        return (self.a[:, : self.norm.size].double() * (now / before).unsqueeze(1)).float()


def sums_of(a: Tensor) -> Tensor:
    return a.float().unflatten(-1, (-1, 32)).sum(-1).transpose(-1, -2).contiguous()


def squares_of(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.square(), (0, -x.shape[1] % 128)).unflatten(1, (-1, 128)).sum(-1).t().contiguous()


def layer(
    hidden: int = 128,
    inner: int = 128,
    experts: int = 8,
    chosen: int = 2,
    live: int = 16,
    kinds: tuple[str, str] = ("Q8_0", "Q8_0"),
    dtype: torch.dtype = torch.float16,
    router_dtype: torch.dtype = torch.float32,
    normalise: bool = True,
) -> Layer:
    generator = torch.Generator().manual_seed(hidden + experts)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    width, inner_width = -hidden % 128 + hidden, -inner % 128 + inner
    gate, up = (stack(kinds[0], experts, inner, hidden, seed) for seed in (1, 2))
    turns = torch.arange(2 * inner).view(2, inner).t().flatten()
    x, earlier = normal(16, hidden) * 3, normal(16, hidden)
    norm = Norm(squares_of(x), squares_of(earlier), hidden, EPS)
    a = torch.zeros(16, width, dtype=dtype)
    a[:, :hidden] = (x * normal(hidden) / earlier.square().mean(-1, keepdim=True).sqrt()).to(dtype)
    routing = Routing(experts, chosen, CPU)
    return Layer(
        router=(normal(experts, hidden) * 0.2).to(router_dtype),
        gate_up=join([gate, up], turns),
        down=scaled(stack(kinds[1], experts, hidden, inner, 3), 16),
        norm=norm,
        gain=normal(hidden),
        a=a,
        sums=sums_of(a),
        x=x,
        live=torch.tensor([live], dtype=torch.int32),
        routing=routing,
        workspace=SplitWorkspace(CPU, [router_plan(experts, width)]),
        h=torch.zeros(routing.slots, 16, inner_width, dtype=dtype),
        h_sums=torch.zeros(routing.slots, inner_width // 32, 16),
        y=torch.full((16, chosen, hidden), NAN),
        a_out=torch.zeros(16, width, dtype=dtype),
        sums_out=torch.full((width // 32, 16), NAN),
        squares_out=torch.full((width // 128, 16), NAN),
        normalise=normalise,
    )


def block_of(part: Layer) -> Qwen3MoeSparseMoeBlock:
    """Hugging Face's module with the same weights."""
    experts, hidden, inner = part.gate_up.experts, part.down.n, part.down.k
    block = Qwen3MoeSparseMoeBlock(
        Qwen3MoeConfig(
            hidden_size=hidden,
            moe_intermediate_size=inner,
            num_experts=experts,
            num_experts_per_tok=part.routing.chosen,
            norm_topk_prob=part.normalise,
            experts_implementation="eager",
        )
    )
    gate, up = part.gate_up.dense.view(experts, inner, 2, hidden).unbind(2)
    with torch.no_grad():
        block.gate.weight.copy_(part.router)
        block.experts.gate_up_proj.copy_(torch.cat((gate, up), 1))
        block.experts.down_proj.copy_(part.down.dense.view(experts, hidden, inner) / 16)
    return block


@torch.no_grad()
def check(part: Layer, before: Tensor, tolerance: float) -> None:
    """The layer that has run against Hugging Face's block on the same input; `before` is x as it was."""
    live, hidden = int(part.live), part.down.n
    expected = before + block_of(part)(part.normed[None])[0]
    added = (expected - before)[:live]
    assert float(added.std()) > 0.3  # there is something to compare
    scale = float(added.abs().max())
    torch.testing.assert_close(part.x[:live], expected[:live], atol=tolerance * scale, rtol=0)
    x = part.x.double()
    torch.testing.assert_close(part.squares_out[:, :live].sum(0).double(), x[:live].square().sum(-1), rtol=1e-5, atol=0)
    factor = (part.norm.squares.double().sum(0) / hidden + EPS).rsqrt().unsqueeze(1)
    a_out = x * part.gain.double() * factor
    error = 1e-3 if part.a_out.dtype == torch.float16 else 1e-5
    torch.testing.assert_close(part.a_out[:live, :hidden].double(), a_out[:live], rtol=error, atol=error)
    assert not part.a_out[:, hidden:].any()
    torch.testing.assert_close(part.sums_out[:, :live], sums_of(part.a_out)[:, :live], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize(
    "shape",
    [
        {"normalise": False, "router_dtype": torch.float16, "inner": 64, "experts": 4, "live": 6},
        pytest.param(
            {"hidden": 256, "inner": 256, "experts": 2, "live": 5, "kinds": ("Q4_K", "Q4_K")},
            marks=pytest.mark.nightly,
        ),
        {"hidden": 160, "inner": 96, "experts": 3, "chosen": 1, "live": 4},  # nothing a multiple of its tile
    ],
    ids=str,
)
def test_the_layer_is_that_of_hugging_face(shape: dict[str, object], suffix: str) -> None:
    part = layer(**shape)  # type: ignore[arg-type]
    before = part.x.clone()
    part.run(suffix)
    check(part, before, 2e-3)  # float16 inner activations


def test_the_reference_is_accurate_in_float32() -> None:
    part = layer(dtype=torch.float32, experts=5, chosen=3)
    before = part.x.clone()
    part.run("_reference")
    check(part, before, 1e-6)


@pytest.mark.parametrize(("experts", "normalise"), [(100, True), (5, False)])
def test_the_route_is_the_best_of_a_softmax(experts: int, normalise: bool) -> None:
    part = layer(experts=experts, chosen=3, live=11, inner=32, normalise=normalise)
    workspace, routing = part.workspace, part.routing
    moe.route(part.a, part.router, part.norm, part.live, routing, workspace, normalise)
    probabilities = (part.normed.double() @ part.router.double().T).softmax(-1)[:11]
    weights, ids = probabilities.topk(3)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    assert torch.equal(routing.experts[:11].long(), ids)
    torch.testing.assert_close(routing.weights[:11].double(), weights, rtol=1e-5, atol=1e-7)
    assert (routing.experts[11:] == -1).all()
    assert not routing.weights[11:].any()
    assert int(routing.count) == len(ids.unique())
    assert torch.equal(routing.active[: int(routing.count)].long(), ids.unique())
    assert not workspace.counters.any()


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_of_equally_likely_experts_the_first_are_chosen(suffix: str) -> None:
    part = layer(experts=40, chosen=4, live=2, inner=32)
    part.router.zero_()
    part.router[33, 0] = 1.0
    part.a[:, 0] = torch.tensor([1.0, -1.0] * 8)
    route = getattr(moe, "route" + suffix)
    route(part.a, part.router, part.norm, part.live, part.routing, part.workspace, True)
    assert part.routing.experts[:2].tolist() == [[33, 0, 1, 2], [0, 1, 2, 3]]
    assert part.routing.active[: int(part.routing.count)].tolist() == [0, 1, 2, 3, 33]


@pytest.mark.parametrize("live", [0, 16])
def test_the_active_experts_are_at_least_none_and_at_most_all(live: int) -> None:
    part = layer(experts=2, chosen=2, live=live, inner=32)
    before = part.y.clone()
    part.run()
    assert int(part.routing.count) == (2 if live else 0)
    assert torch.equal(part.y.isnan(), before.isnan()) == (live == 0)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # infinities in rows that are dead
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_it() -> None:
    full = layer(inner=32, experts=4)
    full.run()
    for row, noise in ((0, NAN), (5, float("inf"))):
        other = layer(inner=32, experts=4, live=row + 1)
        dead = torch.arange(16) != row
        other.a[dead] = torch.randn(15, 128, generator=torch.Generator().manual_seed(row)).half()
        other.a[row + 1 :] = noise
        other.sums.copy_(sums_of(other.a))
        with reversed_programs():
            other.run()
        assert torch.equal(other.routing.experts[row], full.routing.experts[row])
        assert torch.equal(other.x[row], full.x[row])
        assert torch.equal(other.a_out[row], full.a_out[row])
        assert torch.equal(other.sums_out[:, row], full.sums_out[:, row])
        assert torch.equal(other.squares_out[:, row], full.squares_out[:, row])


def test_a_row_that_is_no_number_stays_so_and_harms_no_other() -> None:
    full, broken = layer(experts=4, inner=32, live=5), layer(experts=4, inner=32, live=5)
    broken.a[3], broken.x[3] = NAN, NAN
    broken.sums.copy_(sums_of(broken.a))
    full.run()
    broken.run()
    others = torch.tensor([0, 1, 2, 4])
    assert broken.x[3].isnan().all()
    assert ((broken.routing.experts >= 0) & (broken.routing.experts < 4))[:5].all()
    assert torch.equal(broken.x[others], full.x[others])


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_a_tap_gets_sixteenths_of_the_residual_stream(suffix: str) -> None:
    part = layer(experts=2, inner=32)
    ring = torch.zeros(20, 300, dtype=torch.float16)
    part.run(suffix, Tap(ring, 130, torch.tensor([13], dtype=torch.int32)))
    rows = (13 + torch.arange(16)) % 20
    assert torch.equal(ring[rows, 130:258], (part.x / 16).half())
    ring[rows, 130:258] = 0
    assert not ring.any()
