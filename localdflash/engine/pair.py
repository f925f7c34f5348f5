"""The interfaces that the decode loop knows: a pair, and the target and drafters that a host pair is made of.

Token ids in, token ids out; nothing here knows of text. A pair holds one sequence. Its newest committed token is the
anchor: it is part of `ids`, but it is not in the target's KV cache yet. The anchor of a fresh prompt is
the prompt's last token, so the first answer token comes out of an ordinary step.
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
TargetFeatures = NDArray[np.float32]  # [rows, n_taps * H], the target's hidden states that feed a drafter
Cancelled = Callable[[], bool]


def never() -> bool:
    """Always False: a request that nobody cancels."""
    return False


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of one target forward: row 0 is the anchor's, row i + 1 node i's. Valid until the next forward."""

    logits: Logits  # [rows, V]
    features: TargetFeatures | None


@dataclass(frozen=True, slots=True)
class Step:
    """What one draft-verify-accept round committed, and where its time went (milliseconds)."""

    tokens: Sequence[int]
    drafter: str
    drafted: int
    accepted: int
    draft_ms: float
    verify_ms: float


class StateLost(LocaldflashError):
    """A saved sequence whose bytes did not all arrive: it has to be computed again."""


def at_once() -> None:
    """What is there need not be waited for."""


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """A saved sequence: ids without the anchor, and each part's cache. Only the pair that made it can read it."""

    ids: tuple[int, ...]
    target: bytes | bytearray
    drafters: tuple[bytes | bytearray, ...]
    is_recurrent: bool = False  # whether one can go on from its end alone, as with recurrent layers
    arrived: Callable[[], None] = field(default=at_once, compare=False)  # waits for all bytes; StateLost, each time

    def shared(self, ids: Sequence[int]) -> int:
        """How many of these ids it has, in a state that one can go on from."""
        same = count_common_prefix(self.ids, ids)
        return same if not self.is_recurrent or same == len(self.ids) else 0

    def contains(self, ids: Sequence[int]) -> bool:
        """Return whether a state of these ids is not needed beside this one."""
        return self.shared(ids) == len(ids)

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.target) + sum(map(len, self.drafters))


class Target(Protocol):
    """A model that verifies. Its cache holds `length` committed tokens.

    If `is_recurrent`, the cache holds recurrent states: `crop` reaches only a few lengths, and a saved cache continues
    only from its end.
    """

    context: int
    vocab_size: int
    length: int
    is_recurrent: bool

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        """Append committed ids (at most `max_width`) to the cache; return their taps."""

    def verify(self, anchor: int, draft: Draft) -> Verification:
        """Run the anchor and the draft's nodes in one forward; nothing is committed until `keep`."""

    def keep(self, rows: int) -> None:
        """Commit the first rows of the last `verify`, and drop the others; where that is all of them, see `crop`."""

    def end_prompt(self) -> None:
        """Take note that a prompt ends here: the next one often goes on from its end."""

    def crop(self, length: int) -> None:
        """Drop everything from `length` on, or from before it where no state of that length is kept: see `length`."""

    def assume_length(self, length: int) -> bool:
        """Count the cache as one of so many tokens, whatever they are, to time what follows; False if it cannot."""

    def save(self) -> bytes:
        """Return the cache, for `load`."""

    def load(self, state: bytes, length: int) -> None:
        """Replace the cache by a saved one."""

    @property
    def max_width(self) -> int:
        """The most rows that one call may carry."""


@runtime_checkable
class GreedyTarget(Target, Protocol):
    """A target that can report the likeliest token of each row without writing out its logits."""

    def verify_greedy(self, anchor: int, draft: Draft) -> tuple[Sequence[int], TargetFeatures | None]:
        """Run `verify`; return the likeliest token of each row [rows], of equals the lowest id, and the taps.

        LocaldflashError if the logits are not numbers.
        """


class Drafter(Protocol):
    """A model or an index that proposes. It has observed the first `length` committed tokens."""

    name: str
    is_model: bool  # whether a draft costs a forward; an index is free
    is_autoregressive: bool  # whether it costs one for every node
    max_draft_tokens: int  # nodes that it can propose

    @property
    def unread_tokens(self) -> int:
        """Tokens that it has to read before it proposes, where that costs something: one that goes by nodes."""

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        """Take committed tokens that follow what was observed so far, the anchor excluded."""

    def propose(self, anchor: int, limit: int) -> Draft:
        """Return a draft of at most `limit` nodes to follow the anchor; it may be empty."""

    def rollback(self, length: int) -> None:
        """Forget everything from `length` on."""

    def save(self) -> bytes:
        """Return what has been observed, for `load`."""

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """Replace what has been observed by a saved state over these ids."""


@runtime_checkable
class DocumentDrafter(Protocol):
    """A drafter that copies from texts besides the sequence."""

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """See `Pair`."""


class Pair(Protocol):
    """A target with its drafters over one sequence, batch 1."""

    ids: list[int]
    ends: frozenset[int]  # tokens that end an answer: a step commits nothing after one
    drafting_enabled: bool  # whether steps may draft; what is committed is the same, and drafters go on observing it

    @property
    def cached(self) -> Sequence[int]:
        """Return the leading ids that are in the KV cache."""

    @property
    def room(self) -> int:
        """The number of tokens that can still be committed before the context is full."""

    def prefill(self, ids: Sequence[int], cancelled: Cancelled = never) -> int:
        """Make `ids` the sequence, computing only what is not cached; return how many tokens were computed."""

    def step(self, sampler: Sampler, limit: int) -> Step:
        """Run one round: draft, verify, accept, commit at most `limit` (≥ 1) tokens."""

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Set texts that drafts may be copied from, besides the sequence. They change the speed, never the text."""

    def rollback(self, length: int) -> None:
        """Keep the first `length` ids, in target and drafters alike."""

    def forget(self) -> None:
        """Drop the whole sequence."""

    def save(self) -> SavedSequence:
        """Return the sequence so far, for `load`."""

    def load(self, state: SavedSequence) -> None:
        """Continue from a saved sequence; StateLost leaves the pair as it was."""
