"""Phases `kernels` and `tuning`: microseconds and GB/s of every kernel of a step, with a cold L2.

One captured graph launches a kernel on each of several copies of the weights, four times the L2 in all. GB/s count only
weights or the KV cache.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.gguf_planes import planes_of_blocks
from localdflash.kernels.cuda import matmul as gemm
from localdflash.kernels.cuda.attention import BUCKETS, Scratch, attention, slots_of
from localdflash.kernels.cuda.head import HeadScratch, head
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.qkv import HeadRange, qkv
from localdflash.kernels.cuda.residual import residual
from localdflash.kernels.cuda.rope import rope_tables
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from localdflash.kernels.cuda.swiglu import swiglu
from localdflash.lab.scripts.gpu.gpu_timing import copies_for_cold_l2, microseconds
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup, guarded
from localdflash.lab.scripts.synthetic import POOL, random_blocks
from localdflash.models.weights.ggml_types import GGMLType

ROWS = 16


@dataclass(frozen=True)
class GemmShape:
    """A GEMM of a model: weights [n, k]."""

    name: str
    op: str  # operation that computes it
    n: int
    k: int
    kind: GGMLType


Q4, Q6, Q8 = GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q8_0
SHAPES = (
    GemmShape("8B qkv", "qkv", 6144, 4096, Q4),
    GemmShape("8B o", "residual", 4096, 4096, Q4),
    GemmShape("8B gate_up", "swiglu", 24576, 4096, Q4),
    GemmShape("8B down", "residual", 4096, 12288, Q4),
    GemmShape("8B down Q6_K", "residual", 4096, 12288, Q6),
    GemmShape("8B head", "head", 151936, 4096, Q6),
    GemmShape("8B drafter fc Q8_0", "residual", 4096, 20480, Q8),
    GemmShape("8B drafter fc Q4_K", "residual", 4096, 20480, Q4),
    GemmShape("4B qkv", "qkv", 6144, 2560, Q4),
    GemmShape("4B o", "residual", 2560, 4096, Q4),
    GemmShape("4B gate_up", "swiglu", 19456, 2560, Q4),
    GemmShape("4B down", "residual", 2560, 9728, Q4),
    GemmShape("4B head", "head", 151936, 2560, Q6),
)
TINY_SHAPES = (
    GemmShape("tiny qkv", "qkv", 256, 256, Q4),
    GemmShape("tiny o", "residual", 128, 256, Q6),
    GemmShape("tiny gate_up", "swiglu", 256, 256, Q4),
    GemmShape("tiny head", "head", 256, 256, Q6),
)
TUNED = ("8B qkv", "8B o", "8B gate_up", "8B down", "8B down Q6_K", "tiny qkv")


def planes_of(shape: GemmShape, device: torch.device) -> Planes:
    """Return random packed weights of a shape, repacked from blocks as at load."""
    pool = _pool(shape.kind, device)
    count = shape.n * shape.k // shape.kind.block_weights
    raw = pool[torch.arange(count, device=device) % POOL]
    return planes_of_blocks(raw, shape.kind, shape.n, shape.k)


@cache
def _pool(kind: GGMLType, device: torch.device) -> Tensor:
    return torch.from_numpy(random_blocks(kind)).to(device)


class Inputs:
    """Activations, outputs and scratch memory for the operation of a shape, as in a step."""

    def __init__(self, shape: GemmShape, planes: Planes, device: torch.device) -> None:
        self.shape, self.device, d = shape, device, 128 if shape.n > 1000 else 64
        self.a = torch.randn(ROWS, planes.padded_k, device=device).half()
        self.sums = self.a.float().view(ROWS, -1, 32).sum(-1).t().contiguous()
        squares = torch.rand(-(-shape.k // 128), ROWS, device=device) * 128
        self.norm = Norm(squares, squares.clone(), shape.k, 1e-6)
        self.before = Norm(torch.rand(-(-shape.n // 128), ROWS, device=device) * 128, squares, shape.n, 1e-6)
        self.out = torch.zeros(ROWS, shape.n, dtype=torch.float16, device=device)
        self.out_sums = torch.zeros(shape.n // 32, ROWS, device=device)
        self.half, self.half_sums = self.out[:, : shape.n // 2].contiguous(), self.out_sums[: shape.n // 64].clone()
        self.x, self.gain = torch.zeros(ROWS, shape.n, device=device), torch.ones(shape.n, device=device)
        self.squares_out = torch.zeros(-(-shape.n // 128), ROWS, device=device)
        plans = [gemm.plan(planes.n, planes.padded_k, device, BN=columns) for columns in (64, 128)]
        self.workspace = SplitWorkspace(device, plans)
        self.head_scratch = HeadScratch(device, [planes])
        self.choice = torch.zeros(ROWS, dtype=torch.int32, device=device)
        heads = shape.n // d
        self.part = HeadRange(0, heads, heads - 2 * max(heads // 6, 1), max(heads // 6, 1))
        self.q = torch.zeros(ROWS, max(self.part.q_heads, 1), d, dtype=torch.float16, device=device)
        self.rope, self.gains = rope_tables(64, d, 1e6, device), torch.ones(d, device=device)
        self.start = self.choice[:1].clone()
        self.cache = Cache.empty(1, 64, self.part.kv_heads, d, torch.float16, device).layer(0)

    def call(self, planes: Planes) -> None:
        """Run the operation of the shape once, on these weights."""
        match self.shape.op:
            case "qkv":
                qkv(self.a, self.sums, planes, self.norm, self.part, self.gains, self.gains, self.rope, self.start,
                    self.q, self.cache, self.workspace)  # fmt: skip
            case "residual":
                residual(self.a, self.sums, planes, self.x, self.gain, self.before, self.out, self.out_sums,
                         self.squares_out, self.workspace, add=False)  # fmt: skip
            case "swiglu":
                swiglu(self.a, self.sums, planes, self.norm, self.half, self.half_sums, self.workspace)
            case _:
                head(self.a, self.sums, planes, self.norm, self.choice, self.head_scratch)


def run(setup: Setup, report: BenchReport) -> None:
    """Phase `kernels`: report the rates of every shape, and of attention."""
    is_gpu = setup.device.type == "cuda"
    multiprocessors = torch.cuda.get_device_properties(setup.device).multi_processor_count if is_gpu else 1
    gemms: dict[str, Any] = {}
    for shape in TINY_SHAPES if setup.tiny else SHAPES:
        gemms[shape.name] = guarded(partial(_gemm, shape, setup.device, multiprocessors))
        report.put(gemms=gemms)
    heads = (4, 2, 64) if setup.tiny else (32, 8, 128)
    found: dict[str, Any] = {}
    for context in (200,) if setup.tiny else (1024, 16384):
        for dtype in (torch.float16, torch.int8):
            name = f"{context} {str(dtype).removeprefix('torch.')}"
            found[name] = guarded(partial(_attention, context, dtype, *heads, setup.device, multiprocessors))
            report.put(attention=found)


def _gemm(shape: GemmShape, device: torch.device, multiprocessors: int) -> dict[str, Any]:
    planes = planes_of(shape, device)
    copies = [planes, *(deepcopy(planes) for _ in range(copies_for_cold_l2(planes.nbytes, device) - 1))]
    inputs, cut = Inputs(shape, planes, device), gemm.plan(shape.n, planes.padded_k, device)
    us = microseconds([partial(inputs.call, p) for p in copies], device)
    answer = rate(us, planes.nbytes, multiprocessors) | {"plan": plan_fields(cut), "mb": round(planes.nbytes / 1e6, 1)}
    if shape.kind == Q4 and shape.op != "head":
        answer["matmul_us"] = round(_matmul(copies, inputs), 2)
    return answer


def _matmul(copies: list[Planes], inputs: Inputs) -> float:
    i = inputs
    calls = [partial(gemm.matmul, i.a, i.sums, p, i.out, i.workspace, i.norm) for p in copies]
    return microseconds(calls, i.device)


def _attention(
    context: int, dtype: torch.dtype, heads: int, kv_heads: int, d: int, device: torch.device, multiprocessors: int
) -> dict[str, Any]:
    """Measure attention over the layers of one cache, one after another, as in a step."""
    slots = context + ROWS
    nbytes = 2 * slots * kv_heads * (d * dtype.itemsize + (4 if dtype == torch.int8 else 0))
    layers = copies_for_cold_l2(nbytes, device)
    stack = Cache.empty(layers, slots, kv_heads, d, dtype, device)
    for codes in (stack.k, stack.v):
        codes.copy_(torch.randint(-9, 9, codes.shape, dtype=torch.int8, device=device))
    for scale in (stack.k_scale, stack.v_scale):
        if scale is not None:
            scale.fill_(0.1)
    splits = next(bucket for bucket in BUCKETS if slots <= slots_of(bucket))
    q = torch.randn(ROWS, heads, d, device=device).half() / 8
    out, sums = torch.zeros(ROWS, heads * d, device=device).half(), torch.zeros(heads * d // 32, ROWS, device=device)
    start, scratch = torch.tensor([context], dtype=torch.int32, device=device), Scratch(device, heads, d, splits)
    calls = [
        partial(attention, q, stack.layer(layer), start, out, sums, scratch, "chain", splits=splits)
        for layer in range(layers)
    ]
    return rate(microseconds(calls, device), nbytes, multiprocessors) | {"splits": splits}


def rate(us: float, nbytes: int, multiprocessors: int) -> dict[str, float]:
    """Return the time and bandwidth of a launch that takes `us` microseconds and reads `nbytes`."""
    speed = nbytes / us / 1e3
    return {"us": round(us, 2), "gb_s": float(f"{speed:.4g}"), "gb_s_per_sm": float(f"{speed / multiprocessors:.4g}")}


def plan_fields(cut: SplitPlan) -> dict[str, int]:
    """Return a plan as JSON values."""
    return {"BN": cut.BN, "SPLIT_K": cut.SPLIT_K, "STAGES": cut.STAGES, "num_warps": cut.num_warps}


def tune(setup: Setup, report: BenchReport) -> None:
    """Phase `tuning`: time plans near that of `matmul.plan`, varying one field after another of the best so far."""
    found: dict[str, Any] = {}
    for shape in TINY_SHAPES if setup.tiny else SHAPES:
        if shape.name in TUNED:
            found[shape.name] = {}
            for name, answer in _neighbours(shape, setup.device):
                found[shape.name][name] = answer
                report.put(plans=found)


def _neighbours(shape: GemmShape, device: torch.device) -> Iterator[tuple[str, dict[str, Any]]]:
    planes = planes_of(shape, device)
    copies = [planes, *(deepcopy(planes) for _ in range(copies_for_cold_l2(planes.nbytes, device) - 1))]
    inputs, best, best_us = Inputs(shape, planes, device), gemm.plan(shape.n, planes.padded_k, device), float("inf")
    steps: tuple[Callable[[SplitPlan], list[SplitPlan]], ...] = (
        lambda p: [replace(p, SPLIT_K=s) for s in _splits(p.SPLIT_K, planes.padded_k // 512)],
        lambda p: [replace(p, STAGES=s) for s in (3, 4, 5, 6, 8, 10) if s != p.STAGES],
        lambda p: [replace(p, num_warps=8)],
        lambda p: [
            replace(p, BN=64, tiles=-(-shape.n // 64), SPLIT_K=s) for s in _splits(max(1, p.SPLIT_K // 2), 99)[:3]
        ],
    )
    for candidates in steps:
        for cut in candidates(best):
            name = " ".join(f"{key}={value}" for key, value in plan_fields(cut).items())
            answer = guarded(partial(_timed, cut, copies, inputs))
            yield name, answer
            if answer.get("us", best_us) < best_us:
                best, best_us = cut, answer["us"]


def _splits(near: int, max_splits: int) -> list[int]:
    """Return the numbers of splits to try, around `near`."""
    candidates = {1, near, near - 1, near + 1, near // 2, near * 2, near * 3 // 2}
    return sorted(split for split in candidates if 1 <= split <= max(1, max_splits))


def _timed(cut: SplitPlan, copies: list[Planes], inputs: Inputs) -> dict[str, Any]:
    inputs.workspace = SplitWorkspace(inputs.device, [cut])
    with planned(cut):
        return {"us": round(_matmul(copies, inputs), 2)}


@contextmanager
def planned(cut: SplitPlan) -> Iterator[None]:
    """Return a context in which `matmul` uses this plan."""
    original = gemm.plan
    gemm.plan = lambda *_args, **_options: cut
    try:
        yield
    finally:
        gemm.plan = original
