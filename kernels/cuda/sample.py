"""Sampling of one token per row of logits: repetition penalty, temperature, top-k, top-p, min-p, Gumbel noise.

The filters work as in `localdflash.engine.sampling`: tokens are in falling order of their logits, ties by rising id,
and each filter keeps a prefix of this order. The sample is the token with the largest score + temperature * noise
(Gumbel). The noise depends only on seed, position and token, so a position gets the same token with and without drafts.

Two launches follow the penalty. `_scan` reads all logits once and stores the unfiltered winner of each tile. `_draw`
starts with the best of these. While a filter refuses the sample, the best token before it in the order replaces it. So
nothing is sorted, and only groups of tokens with a high peak are read.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.noise import noise, noise_reference
from localdflash.kernels.cuda.penalty import penalise, penalise_reference
from localdflash.kernels.cuda.sort_keys import index_of, key_of, value_of

TILE = 4096  # tokens that one program scans
GROUP = 32  # tokens per peak
PART = 128  # groups that `_draw` reads at once


@dataclass(frozen=True)
class SampleScratch:
    """Scratch memory between the sampling kernels, for one vocabulary; `seen` is zero between launches."""

    seen: Tensor  # int32 [16, cdiv(V, 32)]
    peaks: Tensor  # float32 [16, groups]: the largest logit of every group
    members: Tensor  # int32 [16, groups]: groups that may contain a token that passes the filters
    tile_peaks: Tensor  # float32 [16, tiles]
    tile_weights: Tensor  # float32 [16, tiles]: sum of exp((logit - tile's peak) / temperature)
    tile_noisy: Tensor  # float32 [16, tiles]: the largest score + temperature * noise
    tile_keys: Tensor  # int64 [16, tiles]: the sort key of that token

    @classmethod
    def empty(cls, vocab: int, device: torch.device, rows: int = 16) -> "SampleScratch":
        """Allocate the buffers for logits [rows, vocab]."""
        tiles = triton.cdiv(vocab, TILE)

        def zeros(columns: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, columns, dtype=dtype, device=device)

        groups = tiles * TILE // GROUP
        return cls(
            seen=zeros(triton.cdiv(vocab, 32), torch.int32),
            peaks=zeros(groups, torch.float32),
            members=zeros(groups, torch.int32),
            tile_peaks=zeros(tiles, torch.float32),
            tile_weights=zeros(tiles, torch.float32),
            tile_noisy=zeros(tiles, torch.float32),
            tile_keys=zeros(tiles, torch.int64),
        )


@triton.jit
def _scores(logits, token, mask):
    """Return the logits of tokens, with infinity in place of NaN, and -infinity outside `mask`."""
    score = tl.load(logits + token, mask=mask, other=-float("inf"))
    return tl.where(score <= float("inf"), score, float("inf"))


@triton.jit
def _best(noisy, key, mask):
    """Return the largest of `noisy` under `mask`, and its key; the largest key among ties."""
    LOWEST_KEY: tl.constexpr = -(2**63)
    value = tl.max(tl.where(mask, noisy, -float("inf")), 0)
    return value, tl.max(tl.where(mask & (noisy == value), key, LOWEST_KEY), 0)


@Kernel
@triton.jit
def _scan(logits, floats, ints, start, peaks, tile_peaks, tile_weights, tile_noisy, tile_keys, V,
          TILE: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles, rows)."""
    tile = tl.program_id(0)
    m = tl.program_id(1)
    at = m * tl.num_programs(0) + tile
    token = tile * TILE + tl.arange(0, TILE)
    wait(PDL)
    release(PDL)
    score = _scores(logits + m * V, token, token < V)
    group = at * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
    tl.store(peaks + group, tl.max(tl.reshape(score, (TILE // GROUP, GROUP)), 1))
    temperature = tl.load(floats)
    if temperature > 0:
        peak = tl.max(score, 0)
        weight = tl.where(score > -float("inf"), tl.exp((score - peak) / temperature), 0.0)
        tl.store(tile_peaks + at, peak)
        tl.store(tile_weights + at, tl.sum(weight, 0))
        noisy = score + temperature * noise(ints, tl.load(start) + m, token)
        value, key = _best(noisy, key_of(score, token), token < V)
        tl.store(tile_noisy + at, value)
        tl.store(tile_keys + at, key)


@triton.jit
def _load_members(logits, members, first, count, V, GROUP: tl.constexpr, PART: tl.constexpr):
    """Return score, token and sort key of the tokens of PART member groups from `first` on; no token: LOWEST_KEY."""
    LOWEST_KEY: tl.constexpr = -(2**63)
    i = tl.arange(0, PART * GROUP)
    group = tl.load(members + first + i // GROUP, mask=first + i // GROUP < count, other=0)
    token = group * GROUP + i % GROUP
    mask = (first + i // GROUP < count) & (token < V)
    score = _scores(logits, token, mask)
    return score, token, tl.where(mask, key_of(score, token), LOWEST_KEY)


@triton.jit
def _count_from(bound, logits, members, count, V, GROUP: tl.constexpr, PART: tl.constexpr):
    """Return the number of tokens of the member groups whose key is at least `bound`."""
    total = tl.full((), 0, tl.int32)
    for first in range(0, count, PART):
        _, _, key = _load_members(logits, members, first, count, V, GROUP, PART)
        total += tl.sum((key >= bound).to(tl.int32), 0)
    return total


@triton.jit
def _sample_before(
    bound, logits, members, count, V, top, temperature, ints, position, GROUP: tl.constexpr, PART: tl.constexpr
):
    """Return the total weight of the tokens with keys above `bound`, and the key of their largest noisy score."""
    LOWEST_KEY: tl.constexpr = -(2**63)
    weight = tl.full((), 0.0, tl.float32)
    value = tl.full((), -float("inf"), tl.float32)
    winner = tl.full((), LOWEST_KEY, tl.int64)
    for first in range(0, count, PART):
        score, token, key = _load_members(logits, members, first, count, V, GROUP, PART)
        weight += tl.sum(tl.where(key > bound, tl.exp((score - top) / temperature), 0.0), 0)
        noisy = score + temperature * noise(ints, position, token)
        part_value, part_winner = _best(noisy, key, key > bound)
        better = (part_value > value) | ((part_value == value) & (part_winner > winner))
        value = tl.where(better, part_value, value)
        winner = tl.where(better, part_winner, winner)
    return weight, winner


@triton.jit
def _peak_bound(peaks, k):
    """Return the k-th largest of `peaks` (ordered int32), at most the k-th largest score; -2**31 if there are fewer."""
    low = tl.full((), -(2**31), tl.int64)
    high = tl.full((), 2**31, tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        enough = tl.sum((peaks >= middle.to(tl.int32)).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@Kernel
@triton.jit
def _draw(logits, floats, ints, start, peaks, members, tile_peaks, tile_weights, tile_noisy, tile_keys,
          choice, V, groups, tiles, GROUPS: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr,
          PART: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (rows,)."""
    INFINITY: tl.constexpr = float("inf")
    LOWEST_KEY: tl.constexpr = -(2**63)
    m = tl.program_id(0)
    g = tl.arange(0, GROUPS)
    t = tl.arange(0, TILES)
    logits += m * V
    members += m * groups
    wait(PDL)
    release(PDL)
    peak = tl.load(peaks + m * groups + g, mask=g < groups, other=-INFINITY)
    top = tl.max(peak, 0)
    temperature = tl.load(floats)
    token = tl.full((), -1, tl.int32)
    if tl.abs(top) < INFINITY:
        if temperature > 0:
            top_p = tl.load(floats + 1)
            min_p = tl.load(floats + 2)
            top_k = tl.load(ints)
            position = tl.load(start) + m
            limited = (top_k > 0) & (top_k < V)
            at = m * tiles + t
            noisy = tl.load(tile_noisy + at, mask=t < tiles, other=-INFINITY)
            _, drawn = _best(noisy, tl.load(tile_keys + at, mask=t < tiles, other=LOWEST_KEY), t < tiles)
            bound = drawn >> 32
            ordered = (key_of(peak, g) >> 32).to(tl.int32)
            if limited:
                bound = _peak_bound(ordered, top_k)
            is_member = (ordered >= bound.to(tl.int32)) & (g < groups)
            tl.store(members + tl.cumsum(is_member.to(tl.int32), 0) - 1, g, mask=is_member)
            count = tl.sum(is_member.to(tl.int32), 0)
            tl.debug_barrier()

            if limited:
                low = bound << 32
                high = (tl.max(ordered, 0).to(tl.int64) + 1) << 32
                survivors = _count_from(low, logits, members, count, V, GROUP, PART)
                while survivors > top_k:
                    middle = (low >> 1) + (high >> 1) + (low & high & 1)
                    above = _count_from(middle, logits, members, count, V, GROUP, PART)
                    enough = above >= top_k
                    survivors = tl.where(enough, above, survivors)
                    low = tl.where(enough, middle, low)
                    high = tl.where(enough, high, middle)
                total, drawn = _sample_before(
                    low - 1, logits, members, count, V, top, temperature, ints, position, GROUP, PART
                )
            else:
                tile_peak = tl.load(tile_peaks + at, mask=t < tiles, other=-INFINITY)
                weight = tl.load(tile_weights + at, mask=t < tiles, other=0.0)
                total = tl.sum(weight * tl.exp((tile_peak - top) / temperature), 0)

            is_refused = True
            while is_refused:
                before, following = _sample_before(
                    drawn, logits, members, count, V, top, temperature, ints, position, GROUP, PART
                )
                in_nucleus = (top_p >= 1.0) | (before < top_p * total)
                likely = tl.exp((value_of(drawn) - top) / temperature) >= min_p
                is_refused = (following > LOWEST_KEY) & ((in_nucleus & likely) == 0)
                drawn = tl.where(is_refused, following, drawn)
            token = index_of(drawn)
        else:
            first = tl.min(tl.where(peak == top, g, GROUPS), 0)
            tokens = first * GROUP + tl.arange(0, GROUP)
            score = _scores(logits, tokens, tokens < V)
            token = tl.min(tl.where(score == top, tokens, 0x7FFFFFFF), 0)
    tl.store(choice + m, token)


def sample(
    logits: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    draft: Tensor,
    start: Tensor,
    choice: Tensor,
    scratch: SampleScratch,
) -> None:
    """Write the token of every row of logits (float32 [16, V], penalised in place) into choice (int32 [16]).

    A row whose largest logit is not finite gets -1. floats: float32 [4], temperature (0: the largest), top_p, min_p,
    penalty. ints: int32 [4], top_k (0: off), low and high half of the seed, penalty window. tokens: int32
    [capacity + 16], by position. draft: int32 [16]. start: int32 [1], the anchor's position; row m's is start + m.
    """
    rows, vocab = logits.shape
    s = scratch
    penalise(logits, floats, ints, tokens, draft, start, s.seen)
    tiles, groups = s.tile_peaks.shape[1], s.peaks.shape[1]
    _scan[(tiles, rows)](
        logits, floats, ints, start, s.peaks, s.tile_peaks, s.tile_weights, s.tile_noisy, s.tile_keys, vocab,
        TILE=TILE, GROUP=GROUP, num_warps=8, **every_launch(logits.device),
    )  # fmt: skip
    _draw[(rows,)](
        logits, floats, ints, start, s.peaks, s.members, s.tile_peaks, s.tile_weights, s.tile_noisy,
        s.tile_keys, choice, vocab, groups, tiles, GROUPS=triton.next_power_of_2(groups),
        TILES=triton.next_power_of_2(tiles), GROUP=GROUP, PART=PART, num_warps=8, **every_launch(logits.device),
    )  # fmt: skip


def sample_reference(
    logits: Tensor,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    draft: Tensor,
    start: Tensor,
    choice: Tensor,
    scratch: SampleScratch | None = None,
) -> None:
    """Do what `sample` does, in torch."""
    temperature, top_p, min_p, _ = floats.tolist()
    penalise_reference(logits, floats, ints, tokens, draft, start, draft)
    failed = ~logits.amax(1).isfinite()
    if temperature == 0:
        choice.copy_(logits.argmax(1).masked_fill(failed, -1))
        return
    falling, order = logits.sort(dim=1, descending=True, stable=True)
    passed = survivors(falling.double(), temperature, int(ints[0]), top_p, min_p)
    positions = start + torch.arange(len(logits), device=logits.device)
    noisy = falling + floats[0] * noise_reference(ints, positions, order)
    drawn = noisy.masked_fill(~passed, -torch.inf).argmax(1, keepdim=True)
    choice.copy_(order.gather(1, drawn)[:, 0].masked_fill(failed, -1))


def survivors(falling: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Return which scores, float64 [rows, V] in falling order, pass the filters, bool [rows, V]."""
    weights = ((falling - falling[:, :1]) / temperature).exp()
    if top_k:
        weights[:, top_k:] = -1.0
    weight = weights.clamp(min=0.0)
    before = (weight.cumsum(1) - weight) / weight.sum(1, keepdim=True)
    return (weights >= min_p) & ((before < top_p) | (top_p >= 1.0))
