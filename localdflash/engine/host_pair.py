"""A pair composed in Python: one target, any drafters, acceptance on the host. Works with every backend.

A step: the drafters propose, the controller picks a draft and its length (none is a choice), the target verifies anchor
and draft in one forward, `accept` walks it, target and drafters keep what was committed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow, UsageError
from localdflash.engine.accept import accept, accept_greedy
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.controller import Controller
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import (
    Cancelled,
    DocumentDrafter,
    Drafter,
    GreedyTarget,
    SavedSequence,
    Step,
    Target,
    never_cancelled,
)
from localdflash.engine.sampling import Constraint, Sampler

GRAMMAR, FORCED = "grammar", 0.95  # what a grammar forces is a draft too; the target may spell it in other tokens
AGREED = "agreed"  # a copied draft that begins as a model's does is right far more often: counted apart
GUESS = 0.4  # a copied draft of less confidence does not keep a model from being asked


@dataclass(frozen=True, slots=True)
class _Open:
    """A draft whose outcome is not known yet: it claims ids[start:]."""

    draft: Draft
    start: int


class HostPair:
    """See `Pair`. With `controller=None` it decodes plainly: the same target, nothing drafted.

    A failure midway drops the whole sequence, so that target and drafters never disagree on how much is committed.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[Drafter] = (),
        controller: Controller | None = None,
    ) -> None:
        self.target = target
        self.drafters = tuple(drafters) if controller else ()
        self.controller = controller
        self.ends: frozenset[int] = frozenset()
        self.drafting_enabled = True
        self.ids: list[int] = []
        self._greedy = target if isinstance(target, GreedyTarget) else None
        self._open: dict[str, _Open] = {}
        self._answered = 0  # tokens since the prompt
        self._drafting_ms = 0.0  # that the drafters with a cost of their own took in this step

    @property
    def cached(self) -> Sequence[int]:
        """See `Pair`."""
        return self.ids[: self.target.length]

    @property
    def room(self) -> int:
        """See `Pair`."""
        return self.target.context - len(self.ids)

    def prefill(self, ids: Sequence[int], cancelled: Cancelled = never_cancelled) -> int:
        """See `Pair`. ContextOverflow names both numbers; a cancelled prefill keeps what it has computed."""
        if not ids:
            raise UsageError("the prompt is empty: at least one token is needed")
        if len(ids) >= self.target.context:
            raise ContextOverflow(f"the prompt has {len(ids)} tokens, the context holds {self.target.context}")
        if self.controller and self._answered:
            self.controller.record_answer(self._answered)
            self._answered = 0
        wanted = list(ids[:-1])
        kept = count_common_prefix(self.cached, wanted)
        try:
            self._crop(kept)
            kept = self.target.length
            done = self._extend(wanted, kept, cancelled)
            self.target.end_prompt()
        except BaseException:
            self.forget()
            raise
        self.ids = [*wanted[:done], ids[done]]
        return done - kept

    def _extend(self, ids: list[int], done: int, cancelled: Cancelled) -> int:
        """Compute ids[done:] chunk by chunk; return how many ids are computed."""
        while done < len(ids) and not cancelled():
            chunk = ids[done : done + self.target.max_width]
            taps = self.target.extend(chunk)
            for drafter in self.drafters:
                drafter.observe(chunk, taps)
            done += len(chunk)
        return done

    def step(self, sampler: Sampler, limit: int) -> Step:
        """See `Pair`."""
        room = min(limit, self.room)
        if room < 1:
            raise ContextOverflow(f"the context of {self.target.context} tokens is full")
        try:
            return self._step(sampler, room)
        except BaseException:
            self.forget()
            raise

    def _step(self, sampler: Sampler, room: int) -> Step:
        anchor, self._drafting_ms = self.ids[-1], 0.0
        if self.controller:
            self.controller.set_context_length(self.target.length)
        began = time.perf_counter()
        limit = min(room, self.target.max_width) - 1
        controller = self.controller if self.drafting_enabled else None
        draft = self._draft(anchor, limit, sampler.constraint) if controller else EMPTY_DRAFT
        drafted = time.perf_counter()
        if sampler.needs_only_argmax and self._greedy:
            likeliest, features = self._greedy.verify_greedy(anchor, draft)
            committed = accept_greedy(draft, likeliest, room, self.ends)
        else:
            verification = self.target.verify(anchor, draft)
            features = verification.features
            committed = accept(draft, verification.logits, sampler, self.ids, room, self.ends)
        self.target.keep(len(committed))
        verified = time.perf_counter()
        if self.drafters:
            fresh = [anchor, *committed[:-1]]
            taps = None if features is None else features[: len(fresh)].copy()
            for drafter in self.drafters:
                drafter.observe(fresh, taps)
        self.ids += committed
        self._answered += len(committed)
        draft_ms, verify_ms = (drafted - began) * 1e3, (verified - drafted) * 1e3
        if controller:
            self._judge()
            ms = (time.perf_counter() - began) * 1e3
            controller.record_verify(len(draft) + 1, ms - self._drafting_ms)
        return Step(committed, draft.drafter, len(draft), len(committed) - 1, draft_ms, verify_ms)

    def _draft(self, anchor: int, limit: int, constraint: Constraint | None) -> Draft:
        """Return the draft that promises most; drafters that cost a forward are asked only if that can pay."""
        assert self.controller is not None
        best, rate = EMPTY_DRAFT, self.controller.baseline_rate
        if limit < 1:
            return best
        if constraint:
            best, rate = self._better(_forced(constraint, limit), best, rate)
        copied, agreed = EMPTY_DRAFT, False
        for drafter in self.drafters:
            asked = min(limit, drafter.max_draft_tokens)
            if drafter.is_model and not self._worth_asking(drafter, asked, max(rate, self._promised(copied))):
                continue
            draft = _allowed(self._propose(drafter, anchor, asked), constraint)
            if not drafter.is_model:
                copied = draft
                continue
            best, rate = self._better(draft, best, rate)
            agreed = agreed or draft.tokens[:1] == copied.tokens[:1]
        best, _ = self._better(replace(copied, drafter=AGREED) if agreed else copied, best, rate)
        return copied.first(len(best)) if best.drafter == AGREED else best

    def _promised(self, copied: Draft) -> float:
        """Return the rate that a model must beat to be asked."""
        assert self.controller is not None
        if not copied or copied.confidence[0] < GUESS:
            return 0.0
        nodes, promised = self.controller.choose_prefix(copied)
        return promised if nodes else 0.0

    def _propose(self, drafter: Drafter, anchor: int, limit: int) -> Draft:
        assert self.controller is not None
        if drafter.is_model:
            limit = self.controller.choose_length(drafter.name, limit)
        began = time.perf_counter()
        draft = drafter.propose(anchor, limit)
        if drafter.is_model:
            ms = (time.perf_counter() - began) * 1e3
            self.controller.record_draft(drafter.name, ms, max(len(draft), 1))
            self._drafting_ms += ms
        return draft.first(limit) if len(draft) > limit else draft

    def _better(self, draft: Draft, best: Draft, rate: float) -> tuple[Draft, float]:
        """Return the better one of two drafts, with its rate; a new draft is remembered, to see how it does."""
        assert self.controller is not None
        if not draft:
            return best, rate
        if draft.drafter not in self._open:
            self._open[draft.drafter] = _Open(draft, len(self.ids))
        nodes, promised = self.controller.choose_prefix(draft)
        return (draft.first(nodes), promised) if nodes and promised > rate else (best, rate)

    def _worth_asking(self, drafter: Drafter, limit: int, rate: float) -> bool:
        assert self.controller is not None
        waiting = drafter.unread_tokens if drafter.is_autoregressive else 0
        promised = self.controller.predict_rate(drafter.name, limit)
        if promised > rate and self.controller.should_read_prompt(drafter.name, waiting, rate, promised):
            return True
        return self.controller.should_probe(drafter.name, limit, rate, waiting)

    def _judge(self) -> None:
        """Tell the controller how each open draft did, once the committed tokens decide it."""
        assert self.controller is not None
        for name, claim in tuple(self._open.items()):
            actual = self.ids[claim.start :]
            right = count_common_prefix(claim.draft.tokens, actual)
            if right < len(actual) or right == len(claim.draft):
                self.controller.record_outcome(name, claim.draft.confidence, right)
                del self._open[name]

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """See `Pair`."""
        for drafter in self.drafters:
            if isinstance(drafter, DocumentDrafter):
                drafter.set_documents(documents)

    def rollback(self, length: int) -> None:
        """See `Pair`; the last id that is kept becomes the anchor."""
        if not 1 <= length <= len(self.ids):
            raise UsageError(f"cannot roll back to {length} tokens of {len(self.ids)}")
        self._crop(length - 1)
        self.ids = self.ids[:length]
        self._extend(self.ids[:-1], self.target.length, never_cancelled)

    def forget(self) -> None:
        """Drop the whole sequence."""
        self._crop(0)
        self.ids = []

    def _crop(self, length: int) -> None:
        self._open.clear()
        self.target.crop(length)
        for drafter in self.drafters:
            drafter.rollback(self.target.length)

    def save(self) -> SavedSequence:
        """See `Pair`."""
        drafters = tuple(drafter.save() for drafter in self.drafters)
        return SavedSequence(tuple(self.cached), self.target.save(), drafters, self.target.is_recurrent)

    def load(self, state: SavedSequence) -> None:
        """See `Pair`; the next call must be `prefill` with ids that go on from the state's."""
        self._open.clear()
        try:
            self.target.load(bytes(state.target), len(state.ids))
            for drafter, saved in zip(self.drafters, state.drafters, strict=True):
                drafter.load(bytes(saved), state.ids)
        except BaseException:
            self.forget()
            raise
        self.ids = list(state.ids)


def _allowed(draft: Draft, constraint: Constraint | None) -> Draft:
    return draft.first(constraint.count_allowed(draft.tokens)) if constraint else draft


def _forced(constraint: Constraint, limit: int) -> Draft:
    tokens = constraint.forced_tokens()[:limit]
    return Draft(GRAMMAR, tokens, [FORCED] * len(tokens))
