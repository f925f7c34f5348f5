"""Lossless acceptance on the device: how far the target agrees with a draft, and what is committed.

Walk from the anchor (row 0): `choice` of a row is the target's token after it; go to the next row if it carries this
token, else stop, and the token is the bonus. It becomes the next anchor, whose keys and values no row holds. The
accepted tokens and the bonus are written to `tokens` behind the anchor; CONTEXT, the anchor's place, moves onto the
bonus.

A record of the step goes to row STEP % slots of a ring, int32 [slots, 24]: step, drafted, drafted_by, accepted, status,
count, then the `count` committed ids, then -1. A row that decides and has no choice (-1: its logits were not numbers)
sets STATUS, and while STATUS is set nothing is committed; the host clears it.
"""

import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.step_state import CONTEXT, DRAFTED_BY, LIVE, STATUS, STEP

RECORD = 24  # integers in a record
HEADER = 6  # of them, before the ids


@Kernel
@triton.jit
def _accept(draft, choice, tokens, state, record, slots, CONTEXT: tl.constexpr, LIVE: tl.constexpr, STEP: tl.constexpr,
            STATUS: tl.constexpr, DRAFTED_BY: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (1,)."""
    i = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    chosen = tl.load(choice + i)
    following = tl.load(draft + i + 1, mask=i < 15, other=-1)  # the draft of the row after each
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

    line = record + step % slots * 24
    tl.store(line, step)
    tl.store(line + 1, live - 1)
    tl.store(line + 2, tl.load(state + DRAFTED_BY))
    tl.store(line + 3, accepted)
    tl.store(line + 4, status)
    tl.store(line + 5, count)
    tl.store(line + 6 + i, tl.where(i < count, chosen, -1))
    tl.store(line + 22 + i, -1, mask=i < 2)


def accept(draft: Tensor, choice: Tensor, tokens: Tensor, state: Tensor, record: Tensor) -> None:
    """Commit what the target agrees with; see the module.

    draft, choice: int32 [16], of which LIVE rows count. tokens: int32 [capacity + 16], by position. state: int32 [8].
    record: int32 [slots, 24].
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
