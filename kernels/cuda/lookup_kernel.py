"""Lookup on the device: what followed the last time that the text ended like this.

Compares the newest tokens with every place of `documents` and of the committed tokens, at most LONGEST tokens back. The
place where most agree wins, of equals the newest; documents count as older than the tokens. What came after it is
proposed; where that runs into the anchor it goes on periodically. If too few agree, the draft that is there stays.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTED_BY, LIVE

LOOKUP = 1  # what DRAFTED_BY says
LONGEST = 16  # agreement beyond this adds nothing
PLACES = 1024  # compared at once by a program
PROGRAMS = 64


@triton.jit
def _longest(text, n, tokens, context, rank, best, LONGEST: tl.constexpr, PLACES: tl.constexpr):
    """The larger of best and, over this program's places in text, agreement << 32 | (rank + place); int64 [PLACES]."""
    for first in range(tl.program_id(0) * PLACES, n, tl.num_programs(0) * PLACES):
        place = first + tl.arange(0, PLACES)
        following = tl.load(text + place + 1, mask=place + 1 < n, other=-1)
        agreeing = following >= 0
        agreement = tl.zeros((PLACES,), tl.int32)
        back = 0
        while (back < LONGEST) & (back <= context) & (tl.max(agreeing.to(tl.int32), 0) > 0):
            token = tl.load(text + place - back, mask=agreeing & (place >= back), other=-1)
            agreeing = agreeing & (token == tl.load(tokens + context - back))
            agreement += agreeing.to(tl.int32)
            back += 1
        best = tl.maximum(best, (agreement.to(tl.int64) << 32) | (rank + place))
    return best


@Kernel
@triton.jit
def _lookup(tokens, state, draft, documents, length, scratch, min_match, limit, CONTEXT: tl.constexpr,
            LIVE: tl.constexpr, DRAFTED_BY: tl.constexpr, LOOKUP: tl.constexpr, LONGEST: tl.constexpr,
            PLACES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (programs,). Place p is documents[p], from `length` on tokens[p - length]."""
    wait(PDL)
    release(PDL)
    context = tl.load(state + CONTEXT)
    n = tl.load(length)
    best = tl.full((PLACES,), 0, tl.int64)
    best = _longest(documents, n, tokens, context, 0, best, LONGEST, PLACES)
    best = _longest(tokens, context + 1, tokens, context, n, best, LONGEST, PLACES)
    tl.atomic_max(scratch, tl.max(best, 0))
    arrived = tl.atomic_add(scratch + 1, 1)
    if arrived == tl.num_programs(0) - 1:
        tl.atomic_xchg(scratch + 1, 0)
        winner = tl.atomic_xchg(scratch, 0)
        agreement = (winner >> 32).to(tl.int32)
        place = (winner & 0x7FFFFFFF).to(tl.int32)
        i = tl.arange(0, 16)
        if place < n:
            proposed = tl.load(documents + place + i, mask=place + i < n, other=-1)
        else:
            period = tl.maximum(n + context - place, 1)
            proposed = tl.load(tokens + place - n + 1 + (i + period - 1) % period)
        count = tl.min(tl.where((proposed < 0) & (i > 0), i, 16), 0) - 1
        count = tl.minimum(count, limit)
        if (agreement >= min_match) & (agreement > 0) & (count > 0):
            tl.store(draft + i, proposed, mask=(i > 0) & (i <= count))
            tl.store(state + LIVE, 1 + count)
            tl.store(state + DRAFTED_BY, LOOKUP)


def lookup(
    tokens: Tensor,
    state: Tensor,
    draft: Tensor,
    documents: Tensor,
    length: Tensor,
    scratch: Tensor,
    min_match: int,
    limit: int,
) -> None:
    """Write up to `limit` tokens into draft[1:], LIVE and DRAFTED_BY, if at least `min_match` tokens agree.

    tokens: int32 [capacity + 16], by position, up to the anchor tokens[CONTEXT]. state: int32 [8]. draft: int32 [16].
    documents: int32 [any], of which length (int32 [1]) are filled, -1 between documents. scratch: int64 [2], zero.
    """
    _lookup[(PROGRAMS,)](
        tokens, state, draft, documents, length, scratch, min_match, limit, CONTEXT=CONTEXT, LIVE=LIVE,
        DRAFTED_BY=DRAFTED_BY, LOOKUP=LOOKUP, LONGEST=LONGEST, PLACES=PLACES, num_warps=4, **every_launch(draft.device),
    )  # fmt: skip


def lookup_reference(
    tokens: Tensor,
    state: Tensor,
    draft: Tensor,
    documents: Tensor,
    length: Tensor,
    scratch: Tensor,
    min_match: int,
    limit: int,
) -> None:
    """Do what `lookup` does, in torch."""
    context, n = int(state[CONTEXT]), int(length)
    committed = tokens[: context + 1]
    old, new = _agreement(documents[:n], committed), _agreement(committed, committed)
    if n:
        old = torch.where(torch.cat((documents[1:n], documents.new_tensor([-1]))) < 0, 0, old)
    agreement = torch.cat((old, new[:context]))  # the anchor's own place has nothing after it
    longest = int(agreement.max()) if len(agreement) else 0
    if longest < max(min_match, 1):
        return
    place = int((agreement == longest).nonzero()[-1])
    if place < n:
        text = documents[place + 1 : n].tolist()
        proposed = text[: text.index(-1)] if -1 in text else text
    else:
        proposed = committed[place - n + 1 :].tolist() * len(draft)
    proposed = proposed[: min(limit, len(draft) - 1)]
    if not proposed:
        return
    draft[1 : 1 + len(proposed)] = torch.tensor(proposed, dtype=torch.int32)
    state[LIVE], state[DRAFTED_BY] = 1 + len(proposed), LOOKUP


def _agreement(text: Tensor, committed: Tensor) -> Tensor:
    """Return how many tokens up to each place of text equal the newest committed ones."""
    agreement = torch.zeros(len(text), dtype=torch.int64, device=text.device)
    for back in range(min(LONGEST, len(committed), len(text))):
        same = text[: len(text) - back] == committed[-1 - back]
        agreement[back:] += same & (agreement[back:] == back)
    return agreement
