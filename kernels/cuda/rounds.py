"""The small launches between the large ones of a round: what goes into `draft`, and how far the drafter is.

Fields of the device state: localdflash.kernels.cuda.step_state.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.step_state import CONTEXT, DRAFTED_BY, DRAFTER, LIVE, SECOND

ROWS = 16
BY_DRAFTER = 2


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
    """Start a round: draft (int32 [16]) = the anchor, then `fill`; one row lives and nobody has drafted.

    tokens: int32 [slots], committed ids by position. state: int32 [8].
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
def _next_tokens(tokens, state, ids, slots, ROWS: tl.constexpr, CONTEXT: tl.constexpr, LIVE: tl.constexpr,
                 SECOND: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    m = tl.arange(0, ROWS)
    wait(PDL)
    release(PDL)
    start = tl.load(state + CONTEXT)
    tl.store(ids + m, tl.load(tokens + start + m, mask=start + m < slots, other=0))
    tl.store(state + LIVE, 16)
    tl.store(state + SECOND, start + 16)


def next_tokens(tokens: Tensor, state: Tensor, ids: Tensor) -> None:
    """Ids (int32 [2, 16]) = the tokens of a prompt from CONTEXT on, two tiles of rows that are all alive."""
    _next_tokens[(1,)](
        tokens, state, ids, len(tokens), ROWS=ids.numel(), CONTEXT=CONTEXT, LIVE=LIVE, SECOND=SECOND, num_warps=1,
        **every_launch(ids.device),
    )  # fmt: skip


def next_tokens_reference(tokens: Tensor, state: Tensor, ids: Tensor) -> None:
    """Do what `next_tokens` does, in torch."""
    start = int(state[CONTEXT])
    found = tokens[start : start + ids.numel()]
    ids.zero_()
    ids.view(-1)[: len(found)] = found
    state[LIVE], state[SECOND] = ROWS, start + ROWS


@Kernel
@triton.jit
def _propose(choice, state, draft, first, drafts, LIVE: tl.constexpr, DRAFTED_BY: tl.constexpr, BY: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    m = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    proposal = tl.load(choice + m - 1 + first, mask=(m > 0) & (m <= drafts), other=0)
    # A drafter without numbers (-1) has no proposal from there on.
    live = tl.min(tl.where(proposal < 0, m, drafts + 1), 0)
    tl.store(draft + m, tl.where(m < live, proposal, 0), mask=m > 0)
    tl.store(state + LIVE, live)
    tl.store(state + DRAFTED_BY, tl.where(live > 1, BY, 0))


def propose(choice: Tensor, state: Tensor, draft: Tensor, first: int, drafts: int) -> None:
    """Draft[1 .. drafts] = the drafter's choices (int32 [16]) for its slots from `first` on, behind the anchor."""
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
    """Count 16 more tokens as seen by the drafter, but no more than there are."""
    _caught_up[(1,)](state, CONTEXT=CONTEXT, DRAFTER=DRAFTER, num_warps=1, **every_launch(state.device))


def caught_up_reference(state: Tensor) -> None:
    """Do what `caught_up` does, in torch."""
    state[DRAFTER] = torch.minimum(state[DRAFTER] + ROWS, state[CONTEXT])
