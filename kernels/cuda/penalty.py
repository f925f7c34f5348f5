"""The repetition penalty, in place: the tokens in a window of the newest text become less likely, each once per row.

Row m follows tokens[0..start] and draft[1..m]; the window is the end of this text. Positive logits are divided by the
penalty, others multiplied by it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait

CHUNK = 1024  # tokens of the window that a program reads at once


@triton.jit
def _window_tokens(first, newest, tokens, draft, context, V, CHUNK: tl.constexpr):
    """Return CHUNK tokens from position `first` on, and a mask of those in the window and the vocabulary."""
    position = first + tl.arange(0, CHUNK)
    committed = tl.load(tokens + position, mask=position <= tl.minimum(newest, context), other=-1)
    drafted = tl.load(draft + position - context, mask=(position > context) & (position <= newest), other=-1)
    token = tl.where(position <= context, committed, drafted)
    return token, (token >= 0) & (token < V)


@Kernel
@triton.jit
def _penalise(logits, floats, ints, tokens, draft, start, seen, V, words, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """Grid (rows,)."""
    m = tl.program_id(0)
    wait(PDL)
    release(PDL)
    penalty = tl.load(floats + 3)
    if penalty != 1.0:
        context = tl.load(start)
        newest = context + m
        window = tl.minimum(tl.load(ints + 3), newest + 1)
        seen += m * words
        logits += m * V
        for first in range(newest + 1 - window, newest + 1, CHUNK):
            token, valid = _window_tokens(first, newest, tokens, draft, context, V, CHUNK)
            bit = 1 << (token & 31)
            before = tl.atomic_or(seen + (token >> 5), bit, mask=valid)
            is_new = valid & ((before & bit) == 0)
            logit = tl.load(logits + token, mask=is_new, other=0.0)
            logit = tl.where(logit > 0, tl.div_rn(logit, penalty), logit * penalty)
            tl.store(logits + token, logit, mask=is_new)
        tl.debug_barrier()
        for first in range(newest + 1 - window, newest + 1, CHUNK):
            token, valid = _window_tokens(first, newest, tokens, draft, context, V, CHUNK)
            tl.store(seen + (token >> 5), 0, mask=valid)


def penalise(
    logits: Tensor, floats: Tensor, ints: Tensor, tokens: Tensor, draft: Tensor, start: Tensor, seen: Tensor
) -> None:
    """Apply the penalty floats[3] for a window of ints[3] tokens to logits, float32 [16, V].

    tokens: int32 [capacity + 16], by position. draft: int32 [16]. start: int32 [1], the anchor's position.
    seen: int32 [16, cdiv(V, 32)], one bit per token, zero before and after.
    """
    rows, vocab = logits.shape
    _penalise[(rows,)](
        logits, floats, ints, tokens, draft, start, seen, vocab, seen.shape[1], CHUNK=CHUNK,
        **every_launch(logits.device),
    )  # fmt: skip


def penalise_reference(
    logits: Tensor, floats: Tensor, ints: Tensor, tokens: Tensor, draft: Tensor, start: Tensor, seen: Tensor
) -> None:
    """Do what `penalise` does, in torch."""
    penalty, window, context = floats[3], int(ints[3]), int(start)
    if penalty == 1.0 or window == 0:
        return
    for m, row in enumerate(logits):
        text = torch.cat((tokens[: context + 1], draft[1 : m + 1]))[-window:].long()
        listed = text[(text >= 0) & (text < len(row))].unique()
        row[listed] = torch.where(row[listed] > 0, row[listed] / penalty, row[listed] * penalty)
