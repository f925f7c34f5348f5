"""The MLP of a mixture of experts for 16 rows (tokens): an expert that several rows chose is read from memory once.

`route` chooses the likeliest experts of the live rows and lists the active (chosen) experts, on the device.
`experts_gate_up` and `experts_down` run the active experts over all 16 rows, and `combine` adds a row's results to the
residual stream, best expert first. A row's bits depend neither on the other rows nor on their experts: the tiles are
the same for every list, and K is never split, since the experts of one row already fill a GPU with tiles.

As in localdflash.kernels.cuda.swiglu the inner activations are scaled by 1/16, and the down matrices by 16.
Architecture: Qwen3 technical report, arXiv 2505.09388.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.matmul import accumulate, plane_constants, pointers
from localdflash.kernels.cuda.norm import TILE, Norm, norm_factor, norm_factor_reference, rstd, rstd_reference
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.residual import GROUP, TAP_SCALE, Tap, store_sums
from localdflash.kernels.cuda.sort_keys import index_of, key_of, value_of
from localdflash.kernels.cuda.split_k import ROWS, SplitPlan, SplitWorkspace, arrive
from localdflash.kernels.cuda.swiglu import SWIGLU_SCALE, silu

ROUTER_TILE = 32  # experts per program of the router
ROUTER_BLOCK = 64  # inputs per step of the router
EXPERT_TILE = 64  # columns of an expert per program: narrow, so that one row's experts make enough programs
EXPERT_LAUNCH = {"BN": EXPERT_TILE, "STAGES": 4, "num_warps": 4}


class Routing:
    """Output buffers of `route`, which chooses `chosen` of `experts` experts for each row."""

    def __init__(self, experts: int, chosen: int, device: torch.device) -> None:
        max_active = min(experts, ROWS * chosen)
        self.experts = torch.full((ROWS, chosen), -1, dtype=torch.int32, device=device)  # best first; -1: not live
        self.weights = torch.zeros(ROWS, chosen, dtype=torch.float32, device=device)
        self.active = torch.zeros(max_active, dtype=torch.int32, device=device)  # experts of any live row, ascending
        self.count = torch.zeros(1, dtype=torch.int32, device=device)  # length of `active`; the rest is stale

    @property
    def chosen(self) -> int:
        """Number of experts per row."""
        return self.experts.shape[1]

    @property
    def slots(self) -> int:
        """Maximum number of active experts; slot i computes expert active[i]."""
        return self.active.shape[0]


def router_plan(experts: int, width: int) -> SplitPlan:
    """Return what `route` needs of a workspace, for inputs [16, width], width a multiple of 128."""
    splits = min(8, width // ROUTER_BLOCK)
    return SplitPlan(1, ROUTER_TILE, triton.cdiv(experts, ROUTER_TILE) * splits)


@Kernel
@triton.jit
def _route(a_ptr, router_ptr, squares_ptr, before_ptr, live_ptr, experts_ptr, weights_ptr, active_ptr, count_ptr,
           partials_ptr, counters_ptr, K, H, eps, P: tl.constexpr, E: tl.constexpr, CHOSEN: tl.constexpr,
           NORMALISE: tl.constexpr, EXPERTS: tl.constexpr, RANKS: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr,
           PROGRAMS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (PROGRAMS,). EXPERTS and RANKS are the powers of two that hold E and CHOSEN."""
    SPLITS: tl.constexpr = PROGRAMS // ((E + BE - 1) // BE)
    NEVER: tl.constexpr = -0x8000000000000000
    program = tl.program_id(0)
    m = tl.arange(0, 16)
    e = program // SPLITS * BE + tl.arange(0, BE)
    per_split = tl.cdiv(tl.cdiv(K, BK), SPLITS)
    first = program % SPLITS * per_split
    acc = tl.zeros((16, BE), tl.float32)
    wait(PDL)
    for block in tl.range(first, tl.minimum(first + per_split, tl.cdiv(K, BK)), num_stages=3):
        k = block * BK + tl.arange(0, BK)
        inside = (e[None, :] < E) & (k[:, None] < H)
        weights = tl.load(router_ptr + e[None, :] * H + k[:, None], mask=inside, other=0.0)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :])
        acc = tl.dot(a.to(weights.dtype), weights, acc, input_precision="ieee")
    release(PDL)
    if arrive((acc,), partials_ptr, counters_ptr, 0, program, BE, PROGRAMS):
        tl.store(counters_ptr, 0)
        ids = tl.arange(0, EXPERTS)
        offsets = ids // BE * (SPLITS * 16 * BE) + ids % BE
        logits = tl.zeros((16, EXPERTS), tl.float32)
        for s in tl.static_range(SPLITS):
            part = partials_ptr + s * (16 * BE) + m[:, None] * BE + offsets[None, :]
            logits += tl.load(part, mask=ids[None, :] < E, other=0.0, cache_modifier=".cg")
        logits *= norm_factor(squares_ptr, before_ptr, P, H, eps)[:, None]
        keys = tl.where(ids[None, :] < E, key_of(logits, tl.broadcast_to(ids[None, :], (16, EXPERTS))), NEVER)
        largest = value_of(tl.max(keys, 1))
        ranks = tl.arange(0, RANKS)
        chosen = tl.full((16, RANKS), -1, tl.int32)
        shares = tl.zeros((16, RANKS), tl.float32)
        for rank in tl.static_range(CHOSEN):
            best = tl.max(keys, 1)
            keys = tl.where(keys == best[:, None], NEVER, keys)
            chosen = tl.where(ranks[None, :] == rank, index_of(best)[:, None], chosen)
            shares = tl.where(ranks[None, :] == rank, tl.exp(value_of(best) - largest)[:, None], shares)
        if NORMALISE:
            total = tl.sum(shares, 1)
        else:
            total = tl.sum(tl.where(ids[None, :] < E, tl.exp(logits - largest[:, None]), 0.0), 1)
        live = m < tl.load(live_ptr)
        slots = m[:, None] * CHOSEN + ranks[None, :]
        inside = m[:, None] * 0 + ranks[None, :] < CHOSEN
        tl.store(experts_ptr + slots, tl.where(live[:, None], chosen, -1), mask=inside)
        tl.store(weights_ptr + slots, tl.where(live[:, None], shares / total[:, None], 0.0), mask=inside)
        is_chosen = (keys == NEVER) & (ids[None, :] < E) & live[:, None]
        active = tl.max(is_chosen.to(tl.int32), 0)
        tl.store(active_ptr + tl.cumsum(active, 0) - active, ids, mask=active > 0)
        tl.store(count_ptr, tl.sum(active, 0))


def route(
    a: Tensor, router: Tensor, norm: Norm, live: Tensor, routing: Routing, workspace: SplitWorkspace, normalise: bool
) -> None:
    """Fill `routing` with the best experts of the first live[0] rows by softmax((a @ router^T) * the norm's factor).

    Of equal logits the lower id comes first; with `normalise` a row's weights sum to one. a float16 [16, width];
    router float32 or float16 [experts, H]; live int32 [1]; the workspace was made for `router_plan`.
    """
    experts, hidden = router.shape
    programs = router_plan(experts, a.shape[1]).SPLIT_K
    _route[(programs,)](
        a, router, norm.squares, norm.before, live, routing.experts, routing.weights, routing.active, routing.count,
        workspace.partials, workspace.counters, a.shape[1], hidden, norm.eps, P=norm.parts, E=experts,
        CHOSEN=routing.chosen, NORMALISE=normalise, EXPERTS=triton.next_power_of_2(experts),
        RANKS=triton.next_power_of_2(routing.chosen), BE=ROUTER_TILE, BK=ROUTER_BLOCK, PROGRAMS=programs, num_warps=4,
        **every_launch(a.device),
    )  # fmt: skip


def route_reference(
    a: Tensor,
    router: Tensor,
    norm: Norm,
    live: Tensor,
    routing: Routing,
    workspace: SplitWorkspace | None,
    normalise: bool,
) -> None:
    """Do what `route` does, in torch and float32; a may be float32."""
    logits = a[:, : router.shape[1]].float() @ router.float().T * norm_factor_reference(norm)
    experts = logits.sort(dim=-1, descending=True, stable=True).indices[:, : routing.chosen]
    weights = logits.softmax(-1).gather(1, experts)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    is_live = (torch.arange(ROWS, device=a.device) < live).unsqueeze(1)
    routing.experts.copy_(torch.where(is_live, experts, -1))
    routing.weights.copy_(torch.where(is_live, weights, 0.0))
    active = routing.experts[routing.experts >= 0].unique()
    routing.active[: len(active)] = active
    routing.count.fill_(len(active))


@Kernel
@triton.jit
def _gate_up(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, squares_ptr, before_ptr,
             active_ptr, count_ptr, out_ptr, sums_out_ptr, K, N, H, eps, F, width, P: tl.constexpr,
             SCALE: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr, SCALING: tl.constexpr, ZERO: tl.constexpr,
             CODE: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles of columns, slots)."""
    tile, slot = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    if slot < tl.load(count_ptr):
        acc, _ = accumulate(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, K, N, tile * BN,
                            0, tl.load(active_ptr + slot), R, HIGH_BITS, SCALING, ZERO, CODE, HAS_MIN, BN, 1, STAGES,
                            ASM)  # fmt: skip
        release(PDL)
        acc *= norm_factor(squares_ptr, before_ptr, P, H, eps)[:, None]
        OUT: tl.constexpr = BN // 2
        gate, up = tl.split(tl.reshape(acc, (16, OUT, 2)))
        row = slot * 16 + tl.arange(0, 16)
        n = tile * OUT + tl.arange(0, OUT)
        inside = n[None, :] < F
        rounded = tl.where(inside, silu(gate) * up * SCALE, 0.0).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row[:, None] * width + n[None, :], rounded, mask=inside)
        sums_out_ptr += slot * (width // 32 * 16)
        store_sums(rounded.to(tl.float32), sums_out_ptr, tile * (OUT // 32), width // 32, OUT)


def experts_gate_up(
    a: Tensor, sums: Tensor, planes: Planes, norm: Norm, routing: Routing, out: Tensor, sums_out: Tensor
) -> None:
    """Set out[slot] = silu(g) * u / 16 for all rows; g, u = (a @ W^T) * norm's factor, W of the slot's active expert.

    a float16 [16, padded_k] with its sums [padded_k / 32, 16]; planes a stack of [2 F, k] whose gate and up rows
    alternate; out float16 [slots, 16, padded_k of its consumer], whose columns past F stay zero; sums_out float32
    [slots, out columns / 32, 16]. Results of rows that did not choose the expert are unused, but finite where a is.
    """
    width = out.shape[2]
    _gate_up[(triton.cdiv(planes.n, EXPERT_TILE), routing.slots)](
        a, sums, *pointers(planes), norm.squares, norm.before, routing.active, routing.count, out, sums_out,
        planes.padded_k, planes.padded_n, norm.size, norm.eps, planes.n // 2, width, P=norm.parts, SCALE=SWIGLU_SCALE,
        **_options(planes, a.device),
    )  # fmt: skip


def experts_gate_up_reference(
    a: Tensor, sums: Tensor, planes: Planes, norm: Norm, routing: Routing, out: Tensor, sums_out: Tensor
) -> None:
    """Do what `experts_gate_up` does, in torch and float32; a and out may be float32."""
    for slot, matrix in _active_matrices(planes, routing):
        product = a[:, : planes.k].float() @ matrix.T * norm_factor_reference(norm)
        gate, up = product.unflatten(1, (-1, 2)).unbind(-1)
        out[slot, :, : planes.n // 2] = (F.silu(gate) * up * SWIGLU_SCALE).to(out.dtype)
        sums_out[slot] = out[slot].float().unflatten(1, (-1, GROUP)).sum(-1).t()


@Kernel
@triton.jit
def _down(a_ptr, sums_ptr, base_ptr, high_ptr, scale_ptr, supers_ptr, minimum_ptr, active_ptr, count_ptr, experts_ptr,
          out_ptr, K, N, H, CHOSEN: tl.constexpr, RANKS: tl.constexpr, R: tl.constexpr, HIGH_BITS: tl.constexpr,
          SCALING: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, HAS_MIN: tl.constexpr, BN: tl.constexpr,
          STAGES: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles of columns, slots)."""
    tile, slot = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    if slot < tl.load(count_ptr):
        expert = tl.load(active_ptr + slot)
        acc, _ = accumulate(a_ptr + slot * (16 * K), sums_ptr + slot * (K // 32 * 16), base_ptr, high_ptr, scale_ptr,
                            supers_ptr, minimum_ptr, K, N, tile * BN, 0, expert, R, HIGH_BITS, SCALING, ZERO, CODE,
                            HAS_MIN, BN, 1, STAGES, ASM)  # fmt: skip
        release(PDL)
        m, ranks, n = tl.arange(0, 16), tl.arange(0, RANKS), tile * BN + tl.arange(0, BN)
        inside = m[:, None] * 0 + ranks[None, :] < CHOSEN
        is_own = tl.load(experts_ptr + m[:, None] * CHOSEN + ranks[None, :], mask=inside, other=-1) == expert
        rank = tl.max(tl.where(is_own, ranks[None, :], -1), 1)
        row = m * CHOSEN + rank
        tl.store(out_ptr + row[:, None] * H + n[None, :], acc, mask=(rank[:, None] >= 0) & (n[None, :] < H))


def experts_down(a: Tensor, sums: Tensor, planes: Planes, routing: Routing, out: Tensor) -> None:
    """Set out[m, j] = a[slot, m] @ W^T for every live row m and its j-th expert, which is active in that slot.

    a float16 [slots, 16, padded_k] and its sums [slots, padded_k / 32, 16], from `experts_gate_up`; planes a stack of
    [H, F]; out float32 [16, chosen, H].
    """
    _down[(triton.cdiv(planes.n, EXPERT_TILE), routing.slots)](
        a, sums, *pointers(planes), routing.active, routing.count, routing.experts, out, planes.padded_k,
        planes.padded_n, planes.n, CHOSEN=routing.chosen, RANKS=triton.next_power_of_2(routing.chosen),
        **_options(planes, a.device),
    )  # fmt: skip


def experts_down_reference(a: Tensor, sums: Tensor, planes: Planes, routing: Routing, out: Tensor) -> None:
    """Do what `experts_down` does, in torch and float32; a may be float32."""
    for slot, matrix in _active_matrices(planes, routing):
        rows, ranks = (routing.experts == routing.active[slot]).nonzero(as_tuple=True)
        out[rows, ranks] = a[slot, rows, : planes.k].float() @ matrix.T


def _options(planes: Planes, device: torch.device) -> dict[str, Any]:
    return EXPERT_LAUNCH | plane_constants(planes) | every_launch(device)


def _active_matrices(planes: Planes, routing: Routing) -> list[tuple[int, Tensor]]:
    """Return every slot in use with its expert's dense matrix [n, k]."""
    matrices = planes.dense.view(planes.experts, planes.n, planes.k)
    return [(slot, matrices[int(routing.active[slot])]) for slot in range(int(routing.count))]


@Kernel
@triton.jit
def _combine(y_ptr, weights_ptr, x_ptr, gain_ptr, before_ptr, out_ptr, sums_ptr, squares_ptr, ring_ptr, start_ptr, H,
             eps, width, ring_rows, ring_width, column, CHOSEN: tl.constexpr, P: tl.constexpr, TAP: tl.constexpr,
             TAP_SCALE: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles of columns, 16 rows)."""
    tile, row = tl.program_id(0), tl.program_id(1)
    n = tile * BN + tl.arange(0, BN)
    gain = tl.load(gain_ptr + n, mask=n < H, other=0.0)
    wait(PDL)
    release(PDL)
    x = tl.load(x_ptr + row * H + n, mask=n < H, other=0.0)
    for rank in tl.static_range(CHOSEN):
        y = tl.load(y_ptr + (row * CHOSEN + rank) * H + n, mask=n < H, other=0.0)
        x += y * tl.load(weights_ptr + row * CHOSEN + rank)
    tl.store(x_ptr + row * H + n, x, mask=n < H)
    if TAP:
        tapped = (x * TAP_SCALE).to(ring_ptr.dtype.element_ty)
        slot = ((tl.load(start_ptr) + row) % ring_rows).to(tl.int64)
        tl.store(ring_ptr + slot * ring_width + column + n, tapped, mask=n < H)
    tl.store(squares_ptr + tile * 16 + row, tl.sum(x * x, 0))
    factor = tl.sum(tl.where(tl.arange(0, 16) == row, rstd(before_ptr, P, H, eps), 0.0), 0)
    rounded = (x * gain * factor).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + n, rounded, mask=n < H)
    group = tile * (BN // 32) + tl.arange(0, BN // 32)
    totals = tl.sum(tl.reshape(rounded.to(tl.float32), (BN // 32, 32)), 1)
    tl.store(sums_ptr + group * 16 + row, totals, mask=group < width // 32)


def combine(
    y: Tensor,
    routing: Routing,
    x: Tensor,
    gain: Tensor,
    previous_norm: Norm,
    a_out: Tensor,
    sums_out: Tensor,
    squares_out: Tensor,
    tap: Tap | None = None,
) -> None:
    """Add weights[:, j] * y[:, j] for every j to x, and write the inputs of the next norm, as `residual` does.

    y float32 [16, chosen, H] from `experts_down`; other arguments as in `residual`. squares_out must not be
    previous_norm.squares.
    """
    hidden = x.shape[1]
    ring, column, start = (a_out, 0, routing.count) if tap is None else (tap.ring, tap.column, tap.start)
    _combine[(triton.cdiv(hidden, TILE), ROWS)](
        y, routing.weights, x, gain, previous_norm.squares, a_out, sums_out, squares_out, ring, start, hidden,
        previous_norm.eps, a_out.shape[1], *ring.shape, column, CHOSEN=routing.chosen, P=previous_norm.parts,
        TAP=tap is not None, TAP_SCALE=TAP_SCALE, BN=TILE, num_warps=1, **every_launch(x.device),
    )  # fmt: skip


def combine_reference(
    y: Tensor,
    routing: Routing,
    x: Tensor,
    gain: Tensor,
    previous_norm: Norm,
    a_out: Tensor,
    sums_out: Tensor,
    squares_out: Tensor,
    tap: Tap | None = None,
) -> None:
    """Do what `combine` does, in torch and float32; a_out and the ring may be float32."""
    hidden = x.shape[1]
    x += (routing.weights.unsqueeze(-1) * y).sum(1)
    a_out[:, :hidden] = (
        x * gain * rstd_reference(previous_norm.squares, previous_norm.size, previous_norm.eps).unsqueeze(1)
    ).to(a_out.dtype)
    sums_out.copy_(a_out.float().unflatten(1, (-1, GROUP)).sum(-1).t())
    squares_out.copy_(F.pad(x.square(), (0, -hidden % TILE)).unflatten(1, (-1, TILE)).sum(-1).t())
    if tap is not None:
        rows = (tap.start + torch.arange(ROWS, device=x.device)) % tap.ring.shape[0]
        tap.ring[rows, tap.column : tap.column + hidden] = (x * TAP_SCALE).to(tap.ring.dtype)
