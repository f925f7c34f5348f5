"""Drafting by a small model of the target's vocabulary, through llama.cpp: its own greedy text, a token at a time.

The model has a context of its own, which reads what was committed when a draft is asked for, and keeps of its drafts
what was accepted. Recurrent layers cannot go back behind the last decode: there a copy of the states is made before
each draft, and what was accepted is read again with what comes next.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp.decode_flags import AS_IT_COMES
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures
from localdflash.models.weights.gguf import GGUFHeader, read_header

LONGEST = 8  # nodes: each costs a forward
TOGETHER = 9  # tokens at most that are read with the anchor, in one decode whose every row has logits
COUNT = struct.Struct("<q")  # tokens in a saved cache


def likeliest(logits: NDArray[np.float32]) -> tuple[int, float]:
    """The best token of a row [V], and its softmax probability."""
    best = int(logits.argmax())
    return best, float(1.0 / np.exp(logits - logits[best]).sum())


class LlamaCppDraftModel:
    """See `Drafter`. Where its context is shorter than the target's it drafts up to its own end."""

    name = "draft-model"
    is_model = is_autoregressive = True
    max_draft_tokens = LONGEST

    def __init__(self, path: Path, target: LlamaCppTarget, threads: int = 0) -> None:
        self._target_vocabulary = target.vocab_size
        context, placement = context_of(read_header(path), target.context), target.placement.whole()
        self.model = LlamaCppTarget(path, context, threads, (), AS_IT_COMES, placement, target.watch, drafts=False)
        self._ids: list[int] = []  # observed
        self._held: list[int] = []  # in the model's cache

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        """See `Drafter`; needs no taps."""
        self._ids += ids

    @property
    def unread_tokens(self) -> int:
        """See `Drafter`."""
        return max(len(self._ids) - len(self._held), 0)

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the token's softmax probability."""
        limit = min(limit, self.max_draft_tokens, self.model.context - len(self._ids) - 1)
        if limit < 1:
            return EMPTY_DRAFT
        rows, tokens, confidence = self._read_up_to(anchor), list[int](), list[float]()
        while True:
            token, sure = likeliest(self._decode(rows)[: self._target_vocabulary])
            tokens.append(token)
            confidence.append(sure)
            if len(tokens) == limit:
                return Draft(self.name, tokens, confidence)
            rows = [token]

    def _read_up_to(self, anchor: int) -> list[int]:
        """Read what was observed but for the last tokens; return those, and the anchor."""
        self._go_back()
        rows = [*self._ids[len(self._held) :], anchor]
        while len(rows) > TOGETHER:
            chunk = rows[: min(self.model.max_width, len(rows) - 1)]
            self.model.extend(self._known(chunk))
            self._held += chunk
            rows = rows[len(chunk) :]
        self.model.end_prompt()
        return rows

    def _go_back(self) -> None:
        """Drop what is in the cache and was not committed."""
        self.model.crop(count_common_prefix(self._held, self._ids))
        del self._held[self.model.length :]

    def _decode(self, rows: list[int]) -> NDArray[np.float32]:
        """Append rows to the cache; the logits [V] of the last one."""
        first, *others = self._known(rows)
        logits = self.model.verify(first, Draft(self.name, others, ())).logits[-1]
        self.model.keep(len(rows))
        self._held += rows
        return logits

    def _known(self, ids: Sequence[int]) -> list[int]:
        """The ids, with the first token in the place of those that only the target has."""
        return [token if token < self.model.vocab_size else 0 for token in ids]

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        del self._ids[length:]

    def save(self) -> bytes:
        """See `Drafter`."""
        self._go_back()
        return COUNT.pack(len(self._held)) + self.model.save()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        (count,) = COUNT.unpack_from(state)
        self.model.load(state[COUNT.size :], count)
        self._ids, self._held = list(ids), list(ids[:count])

    def close(self) -> None:
        """Free context and model."""
        self.model.close()


def context_of(header: GGUFHeader, context: int) -> int:
    """The context of a draft model beside a target's: the same, or all that it was trained for."""
    return min(context, header.require(f"{header.architecture}.context_length", int))
