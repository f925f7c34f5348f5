"""Draft model: a small model with the target's vocabulary, through llama.cpp; it drafts greedily."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp.decode_flags import UNMODIFIED
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures
from localdflash.models.weights.gguf import GGUFHeader, read_header

MAX_DRAFTED = 8  # tokens of a draft: each costs a forward pass
MAX_READ_WITH_ANCHOR = 9  # tokens of the batch that ends with the anchor: every row of it has logits
COUNT = struct.Struct("<q")  # number of tokens in a saved cache


def pick_best(logits: NDArray[np.float32]) -> tuple[int, float]:
    """Return the best token of a row [V], and its softmax probability."""
    best = int(logits.argmax())
    return best, float(1.0 / np.exp(logits - logits[best]).sum())


class LlamaCppDraftModel:
    """See `Drafter`. If its context is shorter than the target's, it drafts up to its own end."""

    name = "draft-model"
    is_model = is_autoregressive = True
    max_draft_tokens = MAX_DRAFTED

    def __init__(self, path: Path, target: LlamaCppTarget, threads: int = 0) -> None:
        self._target_vocabulary = target.vocab_size
        context, placement = draft_context(read_header(path), target.context), target.placement.all_layers()
        self.model = LlamaCppTarget(path, context, threads, (), UNMODIFIED, placement, target.watch, drafts=False)
        self._ids: list[int] = []  # observed tokens
        self._cached: list[int] = []  # tokens in the model's cache

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        """See `Drafter`; needs no features."""
        self._ids += ids

    @property
    def unread_tokens(self) -> int:
        """See `Drafter`."""
        return max(len(self._ids) - len(self._cached), 0)

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the token's softmax probability."""
        limit = min(limit, self.max_draft_tokens, self.model.context - len(self._ids) - 1)
        if limit < 1:
            return EMPTY_DRAFT
        rows, tokens, confidence = self._read_up_to(anchor), list[int](), list[float]()
        while True:
            token, probability = pick_best(self._decode(rows)[: self._target_vocabulary])
            tokens.append(token)
            confidence.append(probability)
            if len(tokens) == limit:
                return Draft(self.name, tokens, confidence)
            rows = [token]

    def _read_up_to(self, anchor: int) -> list[int]:
        """Read all observed tokens except the last few; return these with the anchor."""
        self._drop_rejected()
        rows = [*self._ids[len(self._cached) :], anchor]
        while len(rows) > MAX_READ_WITH_ANCHOR:
            chunk = rows[: min(self.model.max_width, len(rows) - 1)]
            self.model.extend(self._replace_unknown(chunk))
            self._cached += chunk
            rows = rows[len(chunk) :]
        self.model.end_prompt()
        return rows

    def _drop_rejected(self) -> None:
        self.model.crop(count_common_prefix(self._cached, self._ids))
        del self._cached[self.model.length :]

    def _decode(self, rows: list[int]) -> NDArray[np.float32]:
        first, *others = self._replace_unknown(rows)
        logits = self.model.verify(first, Draft(self.name, others, ())).logits[-1]
        self.model.keep(len(rows))
        self._cached += rows
        return logits

    def _replace_unknown(self, ids: Sequence[int]) -> list[int]:
        return [token if token < self.model.vocab_size else 0 for token in ids]

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        del self._ids[length:]

    def save(self) -> bytes:
        """See `Drafter`."""
        self._drop_rejected()
        return COUNT.pack(len(self._cached)) + self.model.save()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        (count,) = COUNT.unpack_from(state)
        self.model.load(state[COUNT.size :], count)
        self._ids, self._cached = list(ids), list(ids[:count])

    def close(self) -> None:
        """Free the context and the model."""
        self.model.close()


def draft_context(header: GGUFHeader, context: int) -> int:
    """Return the context of a draft model: the target's, limited to the draft model's trained length."""
    return min(context, header.require(f"{header.architecture}.context_length", int))
