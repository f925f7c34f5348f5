"""Lossless acceptance on the device: how far the target agrees with a draft, and what is committed.

Walk from the anchor (row 0): `choice` of a row is the target's token after it; go to the child that carries this token,
else stop, and the token is the bonus. It becomes the next anchor, whose keys and values no row holds. The accepted rows
and the bonus are written to `tokens` behind the anchor; CONTEXT, the anchor's place, moves onto the bonus.

A record of the step goes to row STEP % slots of a ring, int32 [slots, 24]: step, drafted, drafted_by, accepted, status,
count, then the `count` committed ids, then -1. A row that decides and has no choice (-1: its logits were not numbers)
sets STATUS, and while STATUS is set nothing is committed; the host clears it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.launch import pdl, release, wait
from localdflash.kernels.state import CONTEXT, DRAFTED_BY, LIVE, STATUS, STEP

RECORD = 24  # integers in a record
HEADER = 6  # of them, before the ids


@triton.jit
def _accept(draft, choice, tokens, state, record, parents, path, slots, TREE: tl.constexpr,
            CONTEXT: tl.constexpr, LIVE: tl.constexpr, STEP: tl.constexpr, STATUS: tl.constexpr,
            DRAFTED_BY: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (1,)."""
    i = tl.arange(0, 16)
    wait(PDL)
    release(PDL)
    proposed = tl.load(draft + i)
    chosen = tl.load(choice + i)
    above = tl.load(parents + i) if TREE else i - 1
    context = tl.load(state + CONTEXT)
    live = tl.load(state + LIVE)
    step = tl.load(state + STEP)
    status = tl.load(state + STATUS)

    row = tl.full((), 0, tl.int32)
    accepted = tl.full((), 0, tl.int32)
    token = tl.sum(tl.where(i == 0, chosen, 0), 0)
    rows = tl.where(i == 0, 0, -1)
    committed = tl.where(i == 0, token, -1)
    walking = True
    while walking:
        agrees = (above == row) & (proposed == token) & (i > row) & (i < live)
        child = tl.min(tl.where(agrees, i, 16), 0)
        walking = child < 16
        if walking:
            row = child
            accepted += 1
            token = tl.sum(tl.where(i == row, chosen, 0), 0)
            rows = tl.where(i == accepted, row, rows)
            committed = tl.where(i == accepted, token, committed)

    status = tl.where(token < 0, 1, status)
    failed = status != 0
    accepted = tl.where(failed, 0, accepted)
    count = tl.where(failed, 0, accepted + 1)
    tl.store(tokens + context + 1 + i, committed, mask=i < count)
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
    tl.store(line + 6 + i, tl.where(i < count, committed, -1))
    tl.store(line + 22 + i, -1, mask=i < 2)
    if TREE:
        tl.store(path, context)
        tl.store(path + 1, count)
        tl.store(path + 2 + i, tl.where(i < count, rows, -1))


def accept(
    draft: Tensor,
    choice: Tensor,
    tokens: Tensor,
    state: Tensor,
    record: Tensor,
    parents: Tensor | None = None,
    path: Tensor | None = None,
) -> None:
    """Commit what the target agrees with; see the module.

    draft, choice: int32 [16], of which LIVE rows count. tokens: int32 [capacity + 16], by position. state: int32 [8].
    record: int32 [slots, 24]. parents: int32 [16] for a tree, the row above each row, which comes before it; None for
    a chain. path, with parents: int32 [18], receives CONTEXT before the step, `count` and the `count` rows whose keys
    and values are to be kept, the anchor's first (then -1).
    """
    _accept[(1,)](
        draft, choice, tokens, state, record, draft if parents is None else parents,
        draft if path is None else path, record.shape[0], TREE=parents is not None, CONTEXT=CONTEXT, LIVE=LIVE,
        STEP=STEP, STATUS=STATUS, DRAFTED_BY=DRAFTED_BY, num_warps=1, **pdl(draft.device),
    )  # fmt: skip


def accept_reference(
    draft: Tensor,
    choice: Tensor,
    tokens: Tensor,
    state: Tensor,
    record: Tensor,
    parents: Tensor | None = None,
    path: Tensor | None = None,
) -> None:
    """Do what `accept` does, in plain Python."""
    proposed, chosen = draft.tolist(), choice.tolist()
    above = list(range(-1, 15)) if parents is None else parents.tolist()
    context, _, live, step, status, drafted_by, *_ = state.tolist()
    rows = [0]
    while children := [
        row for row in range(rows[-1] + 1, live) if above[row] == rows[-1] and proposed[row] == chosen[rows[-1]]
    ]:
        rows.append(children[0])
    status = 1 if chosen[rows[-1]] < 0 else status
    if status:
        rows = []
    committed = torch.tensor([chosen[row] for row in rows], dtype=torch.int32, device=tokens.device)
    count = len(rows)
    tokens[context + 1 : context + 1 + count] = committed
    state[CONTEXT], state[STEP], state[STATUS] = context + count, step + 1, status

    line = record[step % len(record)]
    header = [step, live - 1, drafted_by, max(count - 1, 0), status, count]
    line[:HEADER] = torch.tensor(header, dtype=torch.int32)
    line[HEADER:] = -1
    line[HEADER : HEADER + count] = committed
    if path is not None:
        path[:] = torch.tensor([context, count, *rows, *[-1] * (16 - count)], dtype=torch.int32)
