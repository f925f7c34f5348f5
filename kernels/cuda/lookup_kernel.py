"""Prompt lookup on the device: proposes what followed the longest earlier match of the newest tokens.

Compares the newest tokens, at most MAX_MATCH, with every position of `documents` and of the committed tokens. The
longest match wins (ties: the newest; documents are older than the tokens). The draft is the text after the match,
repeated if it reaches the newest token (anchor). If the match is too short, the existing draft is kept.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTED_BY, LIVE

LOOKUP = 1  # value of DRAFTED_BY
MAX_MATCH = 16  # maximum match length in tokens
POSITIONS = 1024  # positions that a program compares at once
PROGRAMS = 64


@triton.jit
def _longest_match(text, n, tokens, context, rank, best, MAX_MATCH: tl.constexpr, POSITIONS: tl.constexpr):
    """Return max(best, matched tokens << 32 | (rank + position)) over this program's positions, int64 [POSITIONS]."""
    for first in range(tl.program_id(0) * POSITIONS, n, tl.num_programs(0) * POSITIONS):
        position = first + tl.arange(0, POSITIONS)
        next_token = tl.load(text + position + 1, mask=position + 1 < n, other=-1)
        is_matching = next_token >= 0
        matched = tl.zeros((POSITIONS,), tl.int32)
        back = 0
        while (back < MAX_MATCH) & (back <= context) & (tl.max(is_matching.to(tl.int32), 0) > 0):
            token = tl.load(text + position - back, mask=is_matching & (position >= back), other=-1)
            is_matching = is_matching & (token == tl.load(tokens + context - back))
            matched += is_matching.to(tl.int32)
            back += 1
        best = tl.maximum(best, (matched.to(tl.int64) << 32) | (rank + position))
    return best


@Kernel
@triton.jit
def _lookup(tokens, state, draft, documents, length, scratch, min_match, limit, CONTEXT: tl.constexpr,
            LIVE: tl.constexpr, DRAFTED_BY: tl.constexpr, LOOKUP: tl.constexpr, MAX_MATCH: tl.constexpr,
            POSITIONS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (programs,). Position p is that of documents[p] below `length`, else that of tokens[p - length]."""
    wait(PDL)
    release(PDL)
    context = tl.load(state + CONTEXT)
    n = tl.load(length)
    best = tl.full((POSITIONS,), 0, tl.int64)
    best = _longest_match(documents, n, tokens, context, 0, best, MAX_MATCH, POSITIONS)
    best = _longest_match(tokens, context + 1, tokens, context, n, best, MAX_MATCH, POSITIONS)
    tl.atomic_max(scratch, tl.max(best, 0))
    finished = tl.atomic_add(scratch + 1, 1)
    if finished == tl.num_programs(0) - 1:
        tl.atomic_xchg(scratch + 1, 0)
        winner = tl.atomic_xchg(scratch, 0)
        matched = (winner >> 32).to(tl.int32)
        position = (winner & 0x7FFFFFFF).to(tl.int32)
        i = tl.arange(0, 16)
        if position < n:
            proposed = tl.load(documents + position + i, mask=position + i < n, other=-1)
        else:
            period = tl.maximum(n + context - position, 1)
            proposed = tl.load(tokens + position - n + 1 + (i + period - 1) % period)
        count = tl.min(tl.where((proposed < 0) & (i > 0), i, 16), 0) - 1
        count = tl.minimum(count, limit)
        if (matched >= min_match) & (matched > 0) & (count > 0):
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
    """Write up to `limit` tokens into draft[1:], LIVE and DRAFTED_BY, if at least `min_match` tokens match.

    tokens: int32 [capacity + 16], by position, up to the anchor tokens[CONTEXT]. state: int32 [8]. draft: int32 [16].
    documents: int32 [any], of which length (int32 [1]) are filled, -1 between documents. scratch: int64 [2], 0 at rest.
    """
    _lookup[(PROGRAMS,)](
        tokens, state, draft, documents, length, scratch, min_match, limit, CONTEXT=CONTEXT, LIVE=LIVE,
        DRAFTED_BY=DRAFTED_BY, LOOKUP=LOOKUP, MAX_MATCH=MAX_MATCH, POSITIONS=POSITIONS, num_warps=4,
        **every_launch(draft.device),
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
    old_matches, new_matches = _match_lengths(documents[:n], committed), _match_lengths(committed, committed)
    if n:
        old_matches = torch.where(torch.cat((documents[1:n], documents.new_tensor([-1]))) < 0, 0, old_matches)
    matched = torch.cat((old_matches, new_matches[:context]))  # nothing follows the anchor
    longest_match = int(matched.max()) if len(matched) else 0
    if longest_match < max(min_match, 1):
        return
    position = int((matched == longest_match).nonzero()[-1])
    if position < n:
        text = documents[position + 1 : n].tolist()
        proposed = text[: text.index(-1)] if -1 in text else text
    else:
        proposed = committed[position - n + 1 :].tolist() * len(draft)
    proposed = proposed[: min(limit, len(draft) - 1)]
    if not proposed:
        return
    draft[1 : 1 + len(proposed)] = torch.tensor(proposed, dtype=torch.int32)
    state[LIVE], state[DRAFTED_BY] = 1 + len(proposed), LOOKUP


def _match_lengths(text: Tensor, committed: Tensor) -> Tensor:
    """Return how many tokens up to and including each position of text equal the newest committed tokens."""
    matched = torch.zeros(len(text), dtype=torch.int64, device=text.device)
    for back in range(min(MAX_MATCH, len(committed), len(text))):
        same = text[: len(text) - back] == committed[-1 - back]
        matched[back:] += same & (matched[back:] == back)
    return matched
