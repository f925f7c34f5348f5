"""Everything that multiplies by quantized weights."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.ggml_blocks import FORMATS
from localdflash.backends.cuda.repack.plane_packing import INT4, INT8, PlaneLayout
from localdflash.kernels.cuda.convolve import Changes, convolve_in, convolve_out
from localdflash.kernels.cuda.embed import embed
from localdflash.kernels.cuda.fp4 import SPAN, Fp4Matrix, Fp4Rows, fp4_matmul, quantize_rows_fp4
from localdflash.kernels.cuda.head import HeadScratch, head
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.markov import markov_anchor, markov_slot
from localdflash.kernels.cuda.matmul import matmul
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.qkv import HeadRange, qkv
from localdflash.kernels.cuda.residual import Tap, residual
from localdflash.kernels.cuda.rope import Rope
from localdflash.kernels.cuda.swiglu import swiglu
from tests.kernels.cuda.aot.case import (
    EVERY,
    HKV,
    HQ,
    META,
    Q4_K,
    Q6_K,
    SLOTS,
    Case,
    D,
    F,
    H,
    V,
    floats,
    halves,
    ints,
    norm,
    planes,
    planes_tile,
    rows,
    workspace,
)

LAYOUTS = {"int4": INT4, "int8": INT8} | {str(kind.name).lower(): item.layout for kind, item in FORMATS.items()}
RANK = 256  # of DSpark's head
MATMULS = {
    "int4": EVERY,
    "q4_k": EVERY,
    "q6_k": EVERY,
    "q8_0": EVERY,
    "int8": (86, 120),
    "q4_0": (86, 120),
    "q4_1": EVERY,
    "q5_k": (86, 120),
    "mxfp4": (86, 120),
    "nvfp4": (86, 120),
}


def _matmul(layout: PlaneLayout) -> None:
    matmul(*rows(H), planes(H, H, layout), halves(16, H), workspace(), norm())


def _swiglu(layout: PlaneLayout, *tiles: int) -> None:
    swiglu(*rows(H, *tiles), planes(2 * F, H, layout), norm(H, *tiles), *rows(F, *tiles), workspace())


def _residual(*tiles: int) -> None:
    tap = Tap(halves(32, 5 * H), H, ints(8)[1:2])
    into = (*rows(H, *tiles), floats(*tiles, H // 128, 16))
    x, before = floats(*tiles, 16, H), norm(H, *tiles)
    residual(*rows(F, *tiles), planes(H, F, Q6_K), x, floats(H), before, *into, workspace(), tap=tap)


def _taken_over() -> None:
    """Products of the FP4 mode, which the fused kernels only finish."""
    product = Planes(H, F, 32, floats(16, H), None, "product", floats(16, H))
    into = (*rows(H), floats(H // 128, 16))
    residual(*rows(F), product, floats(16, H), floats(H), norm(), *into, workspace())


def _qkv(dtype: torch.dtype, *tiles: int) -> None:
    cache = Cache.empty(1, SLOTS, HKV, D, dtype, META).layer(0)
    tables = Rope(floats(SLOTS, D // 2), floats(SLOTS, D // 2))
    heads = HeadRange(0, HQ + HKV, HQ, HKV)
    weights = planes((HQ + HKV) * D, H, Q4_K)
    state, gains = ints(8), (floats(D), floats(D))
    a, q = rows(H, *tiles), halves(*tiles, 16, HQ, D)
    qkv(*a, weights, norm(H, *tiles), heads, *gains, tables, state[0:1], q, cache, workspace())


def _head() -> None:
    weights = planes(V, H, Q6_K)
    head(*rows(H), weights, norm(), ints(16), HeadScratch(META, [weights]))


def _markov() -> None:
    """Of DSpark: a rank of 256."""
    weights, (a, sums), table = planes(V, RANK, LAYOUTS["q8_0"]), rows(RANK), halves(V, RANK)
    markov_anchor(table, ints(16), a, sums)
    markov_slot(a, sums, weights, table, floats(16, V), 3, ints(16), HeadScratch(META, [weights]), ints(V))


def _convolve() -> None:
    """Of DFlash 2: of two rows, in groups of 16 channels."""
    changes = Changes(floats(2, 2, H), floats(16, 4 * H // 16), 16)
    convolve_in(halves(16, H), norm(), changes, *rows(H))
    into = (*rows(H), floats(H // 128, 16))
    convolve_out(floats(16, H), floats(H), changes, floats(16, H), floats(H), norm(), *into)


def _embed() -> None:
    embed(ints(16), planes(V, H, Q4_K), floats(H), floats(16, H), *rows(H), floats(H // 128, 16), 1.0, 1e-6)


def _fp4(group: int) -> None:
    def scales(n: int) -> Tensor:
        kind = torch.uint8 if group == 32 else torch.float8_e4m3fn
        return torch.empty(H // SPAN, n, SPAN // group, dtype=kind, device=META)

    codes = torch.empty(H // SPAN, H, SPAN // 2, dtype=torch.uint8, device=META)
    a = Fp4Rows(codes[:, :16], scales(16), floats(16))
    quantize_rows_fp4(halves(16, H), a)
    fp4_matmul(a, Fp4Matrix(H, H, codes, scales(H), floats(H)), halves(16, H), workspace())


def _fp4_tile(constants: dict[str, Any]) -> tuple[int, int]:
    """One span of BN columns."""
    weights = constants["BN"] * constants["SPAN"]
    return weights // 2, 16 * weights


CASES = (
    *(
        Case(f"matmul {name}", partial(_matmul, LAYOUTS[name]), planes_tile, capabilities)
        for name, capabilities in MATMULS.items()
    ),
    *(
        Case(f"two tiles {name}", partial(_swiglu, LAYOUTS[name], 2), planes_tile, capabilities)
        for name, capabilities in MATMULS.items()
    ),
    Case("swiglu", partial(_swiglu, Q4_K), planes_tile),
    Case("residual", _residual, planes_tile),
    Case("two tiles residual", partial(_residual, 2), planes_tile),
    Case("two tiles qkv", partial(_qkv, torch.float16, 2), planes_tile),
    Case("qkv fp16", partial(_qkv, torch.float16), planes_tile),
    Case("qkv int8", partial(_qkv, torch.int8), planes_tile, (120,)),
    Case("qkv fp8", partial(_qkv, torch.float8_e4m3fn), planes_tile, (89, 120)),
    Case("head", _head, planes_tile),
    Case("markov", _markov, planes_tile),
    Case("convolve", _convolve),
    Case("taken over", _taken_over, capabilities=(120,)),
    Case("embed", _embed),
    Case("fp4 mx", partial(_fp4, 32), _fp4_tile, (120,)),
    Case("fp4 nv", partial(_fp4, 16), _fp4_tile, (120,)),
)
