"""Interfaces of the decode loop: `Pair`, and the `Target` and `Drafter`s that a `HostPair` is made of.

Token ids in, token ids out; nothing here handles text. A pair holds one sequence. Its newest committed token is the
anchor: it is part of `ids`, but the target's KV cache does not hold it yet. The anchor of a new prompt is the prompt's
last token, so the first answer token comes from an ordinary step.

Features are hidden states of the target that feed a drafter. A tap is a transformer block that they are taken from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import LocaldflashError
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.draft import Draft
from localdflash.engine.sampling import Sampler

Logits = NDArray[np.float32]
TargetFeatures = NDArray[np.float32]  # [rows, number of taps * hidden size]
Cancelled = Callable[[], bool]
Interrupt = Callable[[int], bool]  # called with the number of leading ids that the KV cache holds


def never_cancelled() -> bool:
    """Return False: the request is never cancelled."""
    return False


def never_interrupted(computed: int) -> bool:
    """Return False: the prefill is never interrupted."""
    return False


@dataclass(frozen=True, slots=True)
class Verification:
    """Output of one verify batch: row 0 after the anchor, row i + 1 after draft token i. Valid until the next batch."""

    logits: Logits  # [rows, V]
    features: TargetFeatures | None


@dataclass(frozen=True, slots=True)
class Step:
    """One draft-verify-accept step."""

    tokens: Sequence[int]  # committed tokens
    drafter: str  # name of the drafter that proposed the verified draft
    drafted: int  # number of draft tokens that were verified
    accepted: int  # number of draft tokens that were committed before the last token
    draft_ms: float
    verify_ms: float


class StateLost(LocaldflashError):
    """The bytes of a saved sequence were not copied completely; the sequence must be computed again."""


def already_complete() -> None:
    """Do nothing: the bytes are already complete."""


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """Saved sequence: ids without the anchor, and the caches of target and drafters. Only its pair can load it."""

    ids: tuple[int, ...]
    target: bytes | bytearray
    drafters: tuple[bytes | bytearray, ...]
    is_recurrent: bool = False  # the caches include recurrent states: decoding can continue only from the end
    tokens_in_blocks: int = 0  # leading ids prefilled in blocks, not in steps: their KV entries differ in some bits
    wait: Callable[[], None] = field(default=already_complete, compare=False)  # waits for the copy or raises StateLost

    def count_shared(self, ids: Sequence[int]) -> int:
        """Return how many leading ids can be reused for `ids`; of a recurrent sequence, all or none."""
        shared = count_common_prefix(self.ids, ids)
        return shared if not self.is_recurrent or shared == len(self.ids) else 0

    def contains(self, ids: Sequence[int]) -> bool:
        """Return whether this sequence can replace a saved sequence of `ids`."""
        return self.count_shared(ids) == len(ids)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.target) + sum(map(len, self.drafters))


class Target(Protocol):
    """Model that verifies drafts. Its KV cache holds `length` committed tokens.

    If `is_recurrent`, the cache holds recurrent states: `crop` reaches only a few lengths, and a saved cache continues
    only from its end.
    """

    context: int
    vocab_size: int
    length: int
    is_recurrent: bool

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        """Append committed ids (at most `max_width`) to the cache; return their features."""

    def verify(self, anchor: int, draft: Draft) -> Verification:
        """Run the anchor and the draft in one batch; commit nothing until `keep`."""

    def keep(self, rows: int) -> None:
        """Commit the first `rows` tokens of the last verify batch and drop the rest."""

    def end_prompt(self) -> None:
        """Mark the end of a prompt, where the next prompt often continues."""

    def crop(self, length: int) -> None:
        """Drop all tokens from `length` on; a recurrent target may have to drop more, see `self.length`."""

    def assume_length(self, length: int) -> bool:
        """Pretend that the cache holds `length` tokens, to time later batches; return False if that is impossible."""

    def save(self) -> bytes:
        """Return the KV cache and recurrent states, for `load`."""

    def load(self, state: bytes, length: int) -> None:
        """Replace the KV cache and recurrent states by `state`, saved at `length` tokens."""

    @property
    def max_width(self) -> int:
        """Maximum number of tokens in one batch."""


@runtime_checkable
class GreedyTarget(Target, Protocol):
    """Target that can report the likeliest token of each row without writing out the logits."""

    def verify_greedy(self, anchor: int, draft: Draft) -> tuple[Sequence[int], TargetFeatures | None]:
        """Run `verify`; return each row's likeliest token (the lowest id of a tie) and the features."""


class Drafter(Protocol):
    """Model or index that proposes drafts from the committed tokens that it observed."""

    name: str
    is_model: bool  # whether a draft costs a forward pass; an index is free
    max_draft_tokens: int

    def observe(self, ids: Sequence[int], features: TargetFeatures | None) -> None:
        """Append committed tokens, excluding the anchor, with their features if the target computes any."""

    def propose(self, anchor: int, limit: int) -> Draft:
        """Return a draft of at most `limit` tokens to follow the anchor; it may be empty."""

    def rollback(self, length: int) -> None:
        """Drop all tokens from `length` on."""

    def save(self) -> bytes:
        """Return the drafter's state, for `load`."""

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """Replace the drafter's state by `state`, saved after the drafter had observed `ids`."""


class Pair(Protocol):
    """Target and drafters over one sequence, batch size 1."""

    ids: list[int]
    ends: frozenset[int]  # tokens that end an answer: a step commits nothing after one
    drafting_enabled: bool  # if False, drafters only observe; the committed tokens are the same

    @property
    def cached(self) -> Sequence[int]:
        """Leading ids that the KV cache holds."""

    @property
    def room(self) -> int:
        """Number of tokens that can be committed before the context is full."""

    def prefill(self, ids: Sequence[int], interrupt: Interrupt = never_interrupted) -> int:
        """Make `ids` the sequence, or a prefix of `ids` if interrupted; return how many tokens were computed."""

    def step(self, sampler: Sampler, limit: int) -> Step:
        """Draft, verify, accept, and commit at most `limit` (≥ 1) tokens."""

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Set documents that drafts may be copied from. They change the speed, never the text."""

    def forget(self) -> None:
        """Drop the whole sequence."""

    def save(self) -> SavedSequence:
        """Return the sequence, for `load`."""

    def load(self, state: SavedSequence) -> None:
        """Continue from a saved sequence. StateLost leaves the pair unchanged."""
