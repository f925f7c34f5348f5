"""The mixture of experts in the interpreter against Hugging Face's Qwen3-MoE block and float64 maths."""

from dataclasses import dataclass

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
from tests.support.random_planes import exact_norm_factor, group_sums

CPU = torch.device("cpu")
EPS, NAN = 1e-6, float("nan")
suffixes = pytest.mark.parametrize("suffix", ["", "_reference"])


def stack(experts: int, n: int, k: int, seed: int) -> Planes:
    """Return stacked random experts [n, k] in Q8_0, with weights of about 0.1."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (experts * n * k // 32, 34), dtype=np.uint8)
    blocks[:, :2] = rng.uniform(1e-3, 2e-3, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return planes_of_blocks(torch.from_numpy(blocks), GGMLType.Q8_0, n, k, experts)


def squares_of(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.square(), (0, -x.shape[1] % 128)).unflatten(1, (-1, 128)).sum(-1).t().contiguous()


@dataclass
class Layer:
    """A mixture of experts with inputs and all buffers."""

    hidden: int = 128
    inner: int = 128
    experts: int = 8
    chosen: int = 2
    live: int = 16
    dtype: torch.dtype = torch.float16
    router_dtype: torch.dtype = torch.float32
    normalise: bool = True

    def __post_init__(self) -> None:
        hidden, inner, experts = self.hidden, self.inner, self.experts
        generator = torch.Generator().manual_seed(hidden + experts)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        width, inner_width = -hidden % 128 + hidden, -inner % 128 + inner
        self.x, earlier = normal(16, hidden) * 3, normal(16, hidden)
        self.norm = Norm(squares_of(self.x), squares_of(earlier), hidden, EPS)
        self.a = torch.zeros(16, width, dtype=self.dtype)
        self.a[:, :hidden] = self.x * normal(hidden) / earlier.square().mean(-1, keepdim=True).sqrt()
        self.sums = group_sums(self.a)
        self.router = (normal(experts, hidden) * 0.2).to(self.router_dtype)
        gate, up = (stack(experts, inner, hidden, seed) for seed in (1, 2))
        self.gate_up = join([gate, up], torch.arange(2 * inner).view(2, inner).t().flatten())
        self.down = scaled(stack(experts, hidden, inner, 3), 16)
        self.gain = normal(hidden)  # of the next norm
        self.live_rows = torch.tensor([self.live], dtype=torch.int32)
        self.routing = Routing(experts, self.chosen, CPU)
        self.workspace = SplitWorkspace(CPU, [router_plan(experts, width)])
        self.h = torch.zeros(self.routing.slots, 16, inner_width, dtype=self.dtype)
        self.h_sums = torch.zeros(self.routing.slots, inner_width // 32, 16)
        self.y = torch.full((16, self.chosen, hidden), NAN)
        self.a_out = torch.zeros(16, width, dtype=self.dtype)
        self.sums_out, self.squares_out = torch.full((width // 32, 16), NAN), torch.full((width // 128, 16), NAN)

    def route(self, suffix: str = "") -> None:
        call = getattr(moe, "route" + suffix)
        call(self.a, self.router, self.norm, self.live_rows, self.routing, self.workspace, self.normalise)

    def run(self, suffix: str = "", tap: Tap | None = None) -> None:
        """Run all four operations; `suffix` "_reference" selects those in torch."""
        gate_up, down, combine = (
            getattr(moe, name + suffix) for name in ("experts_gate_up", "experts_down", "combine")
        )
        self.route(suffix)
        gate_up(self.a, self.sums, self.gate_up, self.norm, self.routing, self.h, self.h_sums)
        down(self.h, self.h_sums, self.down, self.routing, self.y)
        outputs = self.a_out, self.sums_out, self.squares_out
        combine(self.y, self.routing, self.x, self.gain, self.norm, *outputs, tap=tap)

    @property
    def normed(self) -> Tensor:
        """Return the normed input of the block, float32 [16, H]."""
        return (self.a[:, : self.hidden].double() * exact_norm_factor(self.norm)).float()

    def block(self) -> Qwen3MoeSparseMoeBlock:
        """Return Hugging Face's module with the same weights."""
        block = Qwen3MoeSparseMoeBlock(
            Qwen3MoeConfig(
                hidden_size=self.hidden, moe_intermediate_size=self.inner, num_experts=self.experts,
                num_experts_per_tok=self.chosen, norm_topk_prob=self.normalise, experts_implementation="eager",
            )
        )  # fmt: skip
        gate, up = self.gate_up.dense.view(self.experts, self.inner, 2, self.hidden).unbind(2)
        block.gate.weight.data.copy_(self.router)
        block.experts.gate_up_proj.data.copy_(torch.cat((gate, up), 1))
        block.experts.down_proj.data.copy_(self.down.dense.view(self.experts, self.hidden, self.inner) / 16)
        return block

    @torch.no_grad()
    def check(self, tolerance: float, suffix: str = "") -> None:
        """Run the layer; compare it with Hugging Face's block on the same input."""
        before, live = self.x.clone(), slice(self.live)
        self.run(suffix)
        added = self.block()(self.normed[None])[0][live]
        assert float(added.std()) > 0.3  # results are not all near zero
        torch.testing.assert_close(
            self.x[live], before[live] + added, atol=tolerance * float(added.abs().max()), rtol=0
        )
        x = self.x.double()
        squares = self.squares_out[:, live].sum(0).double()
        torch.testing.assert_close(squares, x[live].square().sum(-1), rtol=1e-5, atol=0)
        factor = (self.norm.squares.double().sum(0) / self.hidden + EPS).rsqrt().unsqueeze(1)
        error = 1e-3 if self.dtype == torch.float16 else 1e-5
        a_out = self.a_out[live, : self.hidden].double()
        torch.testing.assert_close(a_out, (x * self.gain.double() * factor)[live], rtol=error, atol=error)
        assert not self.a_out[:, self.hidden :].any()
        torch.testing.assert_close(self.sums_out[:, live], group_sums(self.a_out)[:, live], rtol=1e-4, atol=1e-4)


@suffixes
@pytest.mark.parametrize(
    "shape",
    [
        {"normalise": False, "router_dtype": torch.float16, "inner": 64, "experts": 3, "live": 6},
        {"hidden": 160, "inner": 96, "experts": 3, "chosen": 1, "live": 4},  # no size is a multiple of its tile
    ],
    ids=["not normalised", "ragged"],
)
def test_the_layer_is_that_of_hugging_face(shape: dict[str, object], suffix: str) -> None:
    Layer(**shape).check(2e-3, suffix)  # type: ignore[arg-type]  # float16 inner activations


def test_the_reference_is_accurate_in_float32() -> None:
    Layer(dtype=torch.float32, experts=5, chosen=3).check(1e-6, "_reference")


@pytest.mark.parametrize(("experts", "normalise"), [(100, True), (5, False)])
def test_the_route_is_the_best_of_a_softmax(experts: int, normalise: bool) -> None:
    part = Layer(experts=experts, chosen=3, live=11, inner=32, normalise=normalise)
    routing = part.routing
    part.route()
    weights, ids = (part.normed.double() @ part.router.double().T).softmax(-1)[:11].topk(3)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    assert torch.equal(routing.experts[:11].long(), ids)
    torch.testing.assert_close(routing.weights[:11].double(), weights, rtol=1e-5, atol=1e-7)
    assert (routing.experts[11:] == -1).all()
    assert not routing.weights[11:].any()
    assert routing.active[: int(routing.count)].tolist() == ids.unique().tolist()
    assert not part.workspace.counters.any()


@suffixes
def test_ties_choose_the_first_experts(suffix: str) -> None:
    part = Layer(experts=40, chosen=4, live=2, inner=32)
    part.router.zero_()
    part.router[33, 0] = 1.0
    part.a[:, 0] = torch.tensor([1.0, -1.0] * 8)
    part.route(suffix)
    assert part.routing.experts[:2].tolist() == [[33, 0, 1, 2], [0, 1, 2, 3]]
    assert part.routing.active[: int(part.routing.count)].tolist() == [0, 1, 2, 3, 33]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # infinities in rows that are dead
def test_row_bits_do_not_depend_on_other_rows() -> None:
    full = Layer(inner=32, experts=4)
    full.run()
    row = 5
    other = Layer(inner=32, experts=4, live=row + 1)
    dead = torch.arange(16) != row
    other.a[dead] = torch.randn(15, 128, generator=torch.Generator().manual_seed(row)).half()
    other.a[row + 1 :] = float("inf")
    other.sums.copy_(group_sums(other.a))
    with reversed_programs():
        other.run()
    assert torch.equal(other.routing.experts[row], full.routing.experts[row])
    for ours, theirs in ((other.x, full.x), (other.a_out, full.a_out)):
        assert torch.equal(ours[row], theirs[row])
    for ours, theirs in ((other.sums_out, full.sums_out), (other.squares_out, full.squares_out)):
        assert torch.equal(ours[:, row], theirs[:, row])


@suffixes
def test_a_tap_gets_sixteenths_of_the_residual_stream(suffix: str) -> None:
    part = Layer(experts=2, inner=32)
    ring = torch.zeros(20, 300, dtype=torch.float16)
    part.run(suffix, Tap(ring, 130, torch.tensor([13], dtype=torch.int32)))
    rows = (13 + torch.arange(16)) % 20
    assert torch.equal(ring[rows, 130:258], (part.x / 16).half())
    ring[rows, 130:258] = 0
    assert not ring.any()
