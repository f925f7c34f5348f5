"""Cases of all operations that multiply by quantized weights."""

from collections.abc import Callable
from dataclasses import replace

import torch

from localdflash.backends.cuda.proof.calls import Arguments
from localdflash.kernels.cuda import convolve, dense, embed, head, markov, matmul, moe, qkv, residual, swiglu
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.qkv import HeadRange
from localdflash.kernels.cuda.residual import Tap
from localdflash.kernels.cuda.rope import rope_tables
from localdflash.kernels.cuda.split_k import SplitWorkspace
from tests.gpu.case import CPU, F8, F16, HEADS, I8, REAL, ROW_AXES, WIDE, Case, K, N, built, needed
from tests.support.random_planes import LAYOUTS, activations, group_sums, random_norm, random_planes


def _workspace(n: int, k: int) -> Callable[[torch.device], SplitWorkspace]:
    return lambda device: SplitWorkspace(device, [matmul.plan(n, k, device, BN=columns) for columns in (64, 128)])


def _norm(size: int) -> Norm:
    return random_norm(size, -(-size // 128))


def _gemm(name: str, n: int, k: int) -> Case:
    def make() -> Arguments:
        planes = random_planes(name, n, k)
        a, sums = activations(planes)
        return {"a": a, "sums": sums, "planes": planes, "out": torch.zeros(16, n), "norm": _norm(k)}

    build = built(make, workspace=_workspace(n, k))
    return Case(f"matmul {name}", matmul.matmul, matmul.matmul_reference, build, ("out",), True, True)


def _residual(name: str, n: int, k: int, tapped: bool, biased: bool = False) -> Case:
    def make() -> Arguments:
        planes, width = random_planes(name, n, k), -n % 128 + n
        a, sums = activations(planes)
        ring = torch.zeros(64, 3 * n, dtype=torch.float16)
        return {
            "a": a, "sums": sums, "planes": planes, "x": torch.randn(16, n) * 5, "gain": torch.rand(n) + 0.5,
            "previous_norm": _norm(n), "a_out": torch.zeros(16, width).half(), "sums_out": torch.zeros(width // 32, 16),
            "squares_out": torch.zeros(width // 128, 16),
            "tap": Tap(ring, n, torch.tensor([57], dtype=torch.int32)) if tapped else None,
            "bias": torch.randn(n) if biased else None,
        }  # fmt: skip

    names = ("x", "a_out", "sums_out", "squares_out") + (("tap",) if tapped else ())
    build = built(make, workspace=_workspace(n, k))
    title = f"residual {name}{' with a tap' if tapped else ''}"
    return Case(title, residual.residual, residual.residual_reference, build, names, not tapped, not tapped)


def _swiglu(name: str, features: int, k: int) -> Case:
    def make() -> Arguments:
        planes, width = random_planes(name, 2 * features, k), -features % 128 + features
        a, sums = activations(planes)
        out, out_sums = torch.zeros(16, width).half(), torch.zeros(width // 32, 16)
        return {"a": a / 16, "sums": sums / 16, "planes": planes, "norm": _norm(k), "out": out, "sums_out": out_sums}

    build = built(make, workspace=_workspace(2 * features, k))
    return Case(f"swiglu {name}", swiglu.swiglu, swiglu.swiglu_reference, build, ("out", "sums_out"), True, True)


def _qkv(name: str, q_heads: int, kv_heads: int, head_dim: int, k: int, dtype: torch.dtype) -> Case:
    n = (q_heads + 2 * kv_heads) * head_dim

    def make() -> Arguments:
        planes = random_planes(name, n, k)
        a, sums = activations(planes)
        return {
            "a": a, "sums": sums, "planes": planes, "norm": _norm(k),
            "part": HeadRange(0, q_heads + 2 * kv_heads, q_heads, kv_heads), "q_gain": torch.rand(head_dim) + 0.5,
            "k_gain": torch.rand(head_dim) + 0.5, "rope": rope_tables(96, head_dim, 1e6, CPU),
            "start": torch.tensor([37], dtype=torch.int32), "q_out": torch.zeros(16, q_heads, head_dim).half(),
            "cache": Cache.empty(1, 96, kv_heads, head_dim, dtype, CPU).layer(0),
        }  # fmt: skip

    build = built(make, workspace=_workspace(n, k))
    title = f"qkv {name} {head_dim} {dtype}"
    return Case(title, qkv.qkv, qkv.qkv_reference, build, ("q_out", "cache"), needs=needed(dtype))


def _embed(name: str, n: int, k: int) -> Case:
    def make() -> Arguments:
        return {
            "ids": torch.randint(n, (16,), dtype=torch.int32), "table": random_planes(name, n, k),
            "gain": torch.rand(k) + 0.5, "x": torch.zeros(16, k), "a": torch.zeros(16, k).half(),
            "sums": torch.zeros(k // 32, 16), "squares": torch.zeros(k // 128, 16), "scale": 1.0, "eps": 1e-6,
        }  # fmt: skip

    return Case(f"embed {name}", embed.embed, embed.embed_reference, built(make), ("x", "a", "sums", "squares"))


def _dense(name: str, n: int, k: int) -> Case:
    def make() -> Arguments:
        planes = random_planes(name, n, k)
        return {"planes": planes, "out": torch.zeros(planes.padded_k, planes.padded_n).half()}

    return Case(f"dense {name}", dense.dense, dense.dense_reference, built(make), ("out",))


def _head(name: str, n: int, k: int, **options: float) -> Case:
    def make() -> Arguments:
        planes = random_planes(name, n, k)
        a, sums = activations(planes)
        out, logits = torch.zeros(16, dtype=torch.int32), torch.zeros(16, n)
        return {"a": a, "sums": sums, "planes": planes, "norm": _norm(k), "out": out, "logits": logits, **options}

    shaped = random_planes(name, n, k)
    build = built(make, scratch=lambda device: head.HeadScratch(device, [shaped]))
    names = ("out", "logits")
    return Case(f"head {name} {n}", head.head, head.head_reference, build, names, True, True)


def _markov(name: str, n: int, rank: int) -> Case:
    """Return a case of one slot of DSpark's chain: the row of the slot's token is written to `a` for the next slot."""

    def make() -> Arguments:
        planes = random_planes(name, n, rank)
        a, sums = activations(planes)
        a[1:], sums[:, 1:] = 0, 0
        return {"a": a, "sums": sums, "planes": planes, "table": torch.randn(n, rank).half(),
                "logits": torch.randn(16, n), "slot": 3, "out": torch.zeros(16, dtype=torch.int32)}  # fmt: skip

    shaped = random_planes(name, n, rank)
    build = built(make, scratch=lambda device: head.HeadScratch(device, [shaped]))
    return Case(f"markov {name}", markov.markov_slot, markov.markov_slot_reference, build, ("out", "a", "sums"))


def _convolve(n: int, kernel: int, group: int) -> list[Case]:
    """Return cases of both sides of a DFlash 2 sublayer."""

    def common() -> Arguments:
        width = -n % 128 + n
        delta = torch.randn(16, 2 * kernel * n // group)
        a, sums = torch.zeros(16, width).half(), torch.zeros(width // 32, 16)
        return {"coefficients": convolve.Coefficients(torch.randn(2, kernel, n), delta, group), "a": a, "sums": sums}

    def enter() -> Arguments:
        coefficients, a, sums = common().values()
        a[:, :n] = torch.randn(16, n)
        return {"a": a, "norm": _norm(n), "coefficients": coefficients, "out": torch.zeros_like(a), "sums_out": sums}

    def leave() -> Arguments:
        coefficients, a, sums = common().values()
        return {
            "y": torch.randn(16, n), "bias": torch.randn(n), "coefficients": coefficients, "x": torch.randn(16, n) * 5,
            "gain": torch.rand(n) + 0.5, "previous_norm": _norm(n), "a_out": a, "sums_out": sums,
            "squares_out": torch.zeros(a.shape[1] // 128, 16),
        }  # fmt: skip

    names = ("x", "a_out", "sums_out", "squares_out")
    return [
        Case(f"convolve_in {n}", convolve.convolve_in, convolve.convolve_in_reference, built(enter),
             ("out", "sums_out"), True),
        Case(f"convolve_out {n}", convolve.convolve_out, convolve.convolve_out_reference, built(leave), names, True),
    ]  # fmt: skip


def _experts(n: int, k: int, inner: int, experts: int, chosen: int) -> list[Case]:
    """Return cases of the four launches of a mixture, each on the results of the previous references."""

    def after(steps: int) -> Arguments:
        a = torch.randn(16, k).half()
        norm, router = _norm(k), torch.randn(experts, k) * 0.1
        gate_up = random_planes("q5_k", 2 * inner, k, experts=experts)
        down = random_planes("q6_k", n, inner, experts=experts)
        routing = moe.Routing(experts, chosen, CPU)
        out, sums_out = torch.zeros(routing.slots, 16, inner).half(), torch.zeros(routing.slots, inner // 32, 16)
        y, live = torch.zeros(16, chosen, n), torch.tensor([9], dtype=torch.int32)
        if steps > 0:
            moe.route_reference(a, router, norm, live, routing, None, True)
        if steps > 1:
            moe.experts_gate_up_reference(a / 64, group_sums(a / 64), gate_up, norm, routing, out, sums_out)
        if steps > 2:
            moe.experts_down_reference(out, sums_out, down, routing, y)
        common = {"routing": routing}
        return [
            common | {"a": a, "router": router, "norm": norm, "live": live, "normalise": True},
            common | {"a": a / 64, "sums": group_sums(a / 64), "planes": gate_up, "norm": norm, "out": out,
                      "sums_out": sums_out},
            common | {"a": out, "sums": sums_out, "planes": down, "out": y},
            common | {"y": y, "x": torch.randn(16, n), "gain": torch.rand(n) + 0.5, "previous_norm": _norm(n),
                      "a_out": torch.zeros(16, n).half(), "sums_out": torch.zeros(n // 32, 16),
                      "squares_out": torch.zeros(n // 128, 16)},
        ][steps]  # fmt: skip

    plans = {"workspace": lambda device: SplitWorkspace(device, [moe.router_plan(experts, k)])}
    return [
        Case("route", moe.route, moe.route_reference, built(lambda: after(0), **plans), ("routing",)),
        Case("experts_gate_up", moe.experts_gate_up, moe.experts_gate_up_reference, built(lambda: after(1)),
             ("out", "sums_out")),
        Case("experts_down", moe.experts_down, moe.experts_down_reference, built(lambda: after(2)), ("out",)),
        Case("combine", moe.combine, moe.combine_reference, built(lambda: after(3)),
             ("x", "a_out", "sums_out", "squares_out")),
    ]  # fmt: skip


def _tiled(case: Case, tiles: int) -> Callable[[torch.device], Arguments]:
    """Return a function that builds the arguments for some tiles of rows, each with the rows of the last rotated."""

    def stack(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.stack([tensor.roll(5 * tile, axis) for tile in range(tiles)])

    def build(device: torch.device) -> Arguments:
        arguments = case.build(device)
        for name, value in arguments.items():
            if name in ROW_AXES and isinstance(value, torch.Tensor):
                arguments[name] = stack(value, ROW_AXES[name])
            if isinstance(value, Norm):
                arguments[name] = replace(value, squares=stack(value.squares, 1), before=stack(value.before, 1))
        return arguments

    return build


def _two_tiles(case: Case) -> Case:
    return replace(case, name=f"two tiles {case.name}", build=_tiled(case, 2), rows=False, free=False)


def _finished_product(case: Case) -> Case:
    """Return the case for three tiles of rows whose product is finished, as in a block of a prompt."""

    def build(device: torch.device) -> Arguments:
        arguments = _tiled(case, 3)(device)
        weights = arguments["planes"]
        product = torch.randn(48, weights.padded_n, generator=torch.Generator().manual_seed(1)).to(device)
        arguments["planes"] = Planes(weights.n, weights.k, weights.block_words, product, None, "product", product)
        return arguments

    return replace(case, name=f"product {case.name}", build=build, rows=False, free=False)


CASES: list[Case] = [
    *(_gemm(name, N, K) for name in LAYOUTS),
    *(_residual(name, WIDE, K, tapped) for name, tapped in (("q4_k", False), ("q6_k", True))),
    _residual("q8_0", 160, K, False, biased=True),
    *(_residual(name, WIDE, K, False) for name in ("q4_1", "mxfp4", "int4 by 128")),
    _swiglu("q4_k", N + 536 if REAL else 128, WIDE),
    _swiglu("q8_0", 200, WIDE),
    *(_qkv("q4_k", *HEADS, WIDE, dtype) for dtype in (F16, I8, F8)),
    _qkv("q8_0", 4, 2, 64, 256, F16),
    *(_embed(name, N, WIDE) for name in ("q4_k", "q6_k", "q8_0", "nvfp4")),
    *(_dense(name, 256, WIDE) for name in LAYOUTS),
    _head("q6_k", 20_000 if REAL else 600, 1024 if REAL else 256),
    _head("q4_k", 5_000 if REAL else 300, 512 if REAL else 256, scale=0.2, softcap=20.0),
    *(_markov(name, 20_000 if REAL else 300, 256) for name in ("q8_0", "q4_k")),
    *_convolve(WIDE, 2, 16),
    *_convolve(160, 3, 32),
    *_experts(1024 if REAL else 128, 1024 if REAL else 256, 512 if REAL else 256, 8 if REAL else 3, 2),
]
TILED = [_two_tiles(case) for case in CASES if case.op in (residual.residual, swiglu.swiglu, qkv.qkv)]
CASES += [
    *TILED,
    *(_finished_product(case) for case in CASES if case.op in (residual.residual, swiglu.swiglu, qkv.qkv)),
]
