"""State of a pair on its device, and the small kernels of a step that read and write it.

The state is int32 [8]: CONTEXT = tokens in the target's cache (the anchor is token number CONTEXT), DRAFTER = tokens in
the drafter's cache, LIVE = valid rows of the verify batch, STEP = steps so far, SECOND = position of a prompt's second
tile of rows, STATUS = 1 after invalid logits, else 0, DRAFTED_BY = 0 no drafter, 1 lookup, 2 the drafter. SECOND and
CONTEXT lie 16 bytes apart, so that one compiled kernel fits the alignment of both.

Acceptance is lossless. Walk from the anchor, the newest token (row 0): `choice` of a row is the target's token after
that row's token. If the next row is this token, go there; else stop with this token as the bonus. The bonus becomes the
next anchor, and is not yet in the KV cache. The accepted tokens and the bonus are written to `tokens` after the anchor;
CONTEXT becomes the bonus's position.

A record of the step is written to row STEP % steps of a ring buffer, int32 [steps, 24]: step, drafted, drafted_by,
accepted, status, count, then the `count` committed ids, then -1. If the row where the walk stops has no choice (-1:
invalid logits), STATUS is set. While STATUS is set nothing is committed; the host clears it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait

CONTEXT, DRAFTER, LIVE, STEP, SECOND, STATUS, DRAFTED_BY = range(7)
FIELDS = 8
ROWS = 16
BY_DRAFTER = 2
RECORD = 24  # integers in a record
HEADER = 6  # integers of a record before the ids


@Kernel
@triton.jit
def _begin(tokens, state, draft, fill, CONTEXT: tl.constexpr, LIVE: tl.constexpr, DRAFTED_BY: tl.constexpr,
           PDL: tl.constexpr):  # fmt: skip
    m = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    anchor = tl.load(tokens + tl.load(state + CONTEXT))
    tl.store(draft + m, tl.where(m == 0, anchor, fill))
    tl.store(state + LIVE, 1)
    tl.store(state + DRAFTED_BY, 0)


def begin(tokens: Tensor, state: Tensor, draft: Tensor, fill: int) -> None:
    """Start a step: set draft (int32 [16]) to the anchor, then `fill`; set LIVE to 1 and DRAFTED_BY to 0.

    tokens: int32 [capacity], committed ids by position. state: int32 [8].
    """
    _begin[(1,)](
        tokens, state, draft, fill, CONTEXT=CONTEXT, LIVE=LIVE, DRAFTED_BY=DRAFTED_BY, num_warps=1,
        **every_launch(draft.device),
    )  # fmt: skip


def begin_reference(tokens: Tensor, state: Tensor, draft: Tensor, fill: int) -> None:
    """Do what `begin` does, in torch."""
    draft.fill_(fill)
    draft[0] = tokens[int(state[CONTEXT])]
    state[LIVE], state[DRAFTED_BY] = 1, 0


@Kernel
@triton.jit
def _next_tokens(tokens, state, ids, capacity, COUNT: tl.constexpr, CONTEXT: tl.constexpr, LIVE: tl.constexpr,
                 SECOND: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    m = tl.arange(0, COUNT)
    wait(PDL)
    release(PDL)
    start = tl.load(state + CONTEXT)
    tl.store(ids + m, tl.load(tokens + start + m, mask=start + m < capacity, other=0))
    tl.store(state + LIVE, 16)
    tl.store(state + SECOND, start + 16)


def next_tokens(tokens: Tensor, state: Tensor, ids: Tensor) -> None:
    """Set ids (int32 [T, 16]) to the tokens from CONTEXT on, LIVE to 16, and SECOND to CONTEXT + 16."""
    _next_tokens[(1,)](
        tokens, state, ids, len(tokens), COUNT=ids.numel(), CONTEXT=CONTEXT, LIVE=LIVE, SECOND=SECOND, num_warps=1,
        **every_launch(ids.device),
    )  # fmt: skip


def next_tokens_reference(tokens: Tensor, state: Tensor, ids: Tensor) -> None:
    """Do what `next_tokens` does, in torch."""
    start = int(state[CONTEXT])
    chunk = tokens[start : start + ids.numel()]
    ids.zero_()
    ids.view(-1)[: len(chunk)] = chunk
    state[LIVE], state[SECOND] = ROWS, start + ROWS


@Kernel
@triton.jit
def _propose(choice, state, draft, first, drafts, LIVE: tl.constexpr, DRAFTED_BY: tl.constexpr, BY: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    m = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    proposal = tl.load(choice + m - 1 + first, mask=(m > 0) & (m <= drafts), other=0)
    # From the first position with invalid logits (-1) on the drafter proposes nothing.
    live = tl.min(tl.where(proposal < 0, m, drafts + 1), 0)
    tl.store(draft + m, tl.where(m < live, proposal, 0), mask=m > 0)
    tl.store(state + LIVE, live)
    tl.store(state + DRAFTED_BY, tl.where(live > 1, BY, 0))


def propose(choice: Tensor, state: Tensor, draft: Tensor, first: int, drafts: int) -> None:
    """Set draft[1 .. drafts] to choice[first ..] (int32 [16]) up to a -1, the rest to 0; set LIVE and DRAFTED_BY."""
    _propose[(1,)](
        choice,
        state,
        draft,
        first,
        drafts,
        LIVE=LIVE,
        DRAFTED_BY=DRAFTED_BY,
        BY=BY_DRAFTER,
        num_warps=1,
        **every_launch(draft.device),
    )


def propose_reference(choice: Tensor, state: Tensor, draft: Tensor, first: int, drafts: int) -> None:
    """Do what `propose` does, in torch."""
    proposal = choice[first : first + drafts].tolist()
    live = next((m for m, token in enumerate(proposal, 1) if token < 0), drafts + 1)
    draft[1:] = 0
    draft[1:live] = choice[first : first + live - 1]
    state[LIVE], state[DRAFTED_BY] = live, BY_DRAFTER if live > 1 else 0


@Kernel
@triton.jit
def _caught_up(state, CONTEXT: tl.constexpr, DRAFTER: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    release(PDL)
    tl.store(state + DRAFTER, tl.minimum(tl.load(state + DRAFTER) + 16, tl.load(state + CONTEXT)))


def caught_up(state: Tensor) -> None:
    """Advance DRAFTER by 16 tokens, at most to CONTEXT."""
    _caught_up[(1,)](state, CONTEXT=CONTEXT, DRAFTER=DRAFTER, num_warps=1, **every_launch(state.device))


def caught_up_reference(state: Tensor) -> None:
    """Do what `caught_up` does, in torch."""
    state[DRAFTER] = torch.minimum(state[DRAFTER] + ROWS, state[CONTEXT])


@Kernel
@triton.jit
def _accept(draft, choice, tokens, state, record, steps, CONTEXT: tl.constexpr, LIVE: tl.constexpr, STEP: tl.constexpr,
            STATUS: tl.constexpr, DRAFTED_BY: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (1,)."""
    i = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    chosen = tl.load(choice + i)
    following = tl.load(draft + i + 1, mask=i < 15, other=-1)  # the token of the next row
    context = tl.load(state + CONTEXT)
    live = tl.load(state + LIVE)
    step = tl.load(state + STEP)
    status = tl.load(state + STATUS)

    agrees = (chosen == following) & (i < live - 1)
    accepted = tl.min(tl.where(agrees, 15, i), 0)
    token = tl.sum(tl.where(i == accepted, chosen, 0), 0)

    status = tl.where(token < 0, 1, status)
    failed = status != 0
    accepted = tl.where(failed, 0, accepted)
    count = tl.where(failed, 0, accepted + 1)
    tl.store(tokens + context + 1 + i, chosen, mask=i < count)
    tl.store(state + CONTEXT, context + count)
    tl.store(state + STEP, step + 1)
    tl.store(state + STATUS, status)

    line = record + step % steps * 24
    tl.store(line, step)
    tl.store(line + 1, live - 1)
    tl.store(line + 2, tl.load(state + DRAFTED_BY))
    tl.store(line + 3, accepted)
    tl.store(line + 4, status)
    tl.store(line + 5, count)
    tl.store(line + 6 + i, tl.where(i < count, chosen, -1))
    tl.store(line + 22 + i, -1, mask=i < 2)


def accept(draft: Tensor, choice: Tensor, tokens: Tensor, state: Tensor, record: Tensor) -> None:
    """Commit the tokens that the target accepts; see the module docstring.

    draft, choice: int32 [16], of which the first LIVE rows are valid. tokens: int32 [capacity], by position, with
    room for 16 tokens after the anchor. state: int32 [8]. record: int32 [steps, 24].
    """
    _accept[(1,)](
        draft, choice, tokens, state, record, record.shape[0], CONTEXT=CONTEXT, LIVE=LIVE, STEP=STEP, STATUS=STATUS,
        DRAFTED_BY=DRAFTED_BY, num_warps=1, **every_launch(draft.device),
    )  # fmt: skip


def accept_reference(draft: Tensor, choice: Tensor, tokens: Tensor, state: Tensor, record: Tensor) -> None:
    """Do what `accept` does, in plain Python."""
    proposed, chosen = draft.tolist(), choice.tolist()
    context, live, step, status, drafted_by = state[[CONTEXT, LIVE, STEP, STATUS, DRAFTED_BY]].tolist()
    accepted = 0
    while accepted + 1 < live and proposed[accepted + 1] == chosen[accepted]:
        accepted += 1
    status = 1 if chosen[accepted] < 0 else status
    count = 0 if status else accepted + 1
    committed = choice[:count]
    tokens[context + 1 : context + 1 + count] = committed
    state[CONTEXT], state[STEP], state[STATUS] = context + count, step + 1, status

    line = record[step % len(record)]
    header = [step, live - 1, drafted_by, max(count - 1, 0), status, count]
    line[:HEADER] = record.new_tensor(header)
    line[HEADER:] = -1
    line[HEADER : HEADER + count] = committed
