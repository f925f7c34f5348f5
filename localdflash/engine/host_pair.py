"""Pair composed in Python from one target and any drafters of any backend; acceptance runs on the host.

In a step, the drafters propose, and the controller picks a draft and its length (possibly 0). The target verifies the
anchor (the newest token, not yet in the KV cache) and the draft in one forward pass, and `accept` commits tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from localdflash.base.errors import ContextOverflow, UsageError
from localdflash.engine.accept import accept, accept_greedy
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.controller import Controller
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Drafter, GreedyTarget, Interrupt, SavedSequence, Step, Target, never_interrupted
from localdflash.engine.sampling import Constraint, Sampler

GRAMMAR = "grammar"  # drafter name of drafts that a grammar forces
FORCED_CONFIDENCE = 0.95  # below 1, since the target may spell the forced text in other tokens
AGREED = "agreed"  # drafter name of lookup drafts that begin like a model's draft: calibrated separately
MIN_LOOKUP_CONFIDENCE = 0.4  # a model need not beat a lookup draft whose first token has less confidence


class _PendingDraft(NamedTuple):
    """Draft of ids[start:] whose outcome is not known yet."""

    draft: Draft
    start: int


class HostPair:
    """See `Pair`. With `controller=None` it decodes without drafting.

    An error in `prefill`, `step` or `load` drops the sequence, so that target and drafters never hold different tokens.
    """

    def __init__(self, target: Target, drafters: Sequence[Drafter] = (), controller: Controller | None = None) -> None:
        self.target = target
        self.drafters = tuple(drafters) if controller else ()
        self.controller = controller
        self.ends: frozenset[int] = frozenset()
        self.drafting_enabled = True
        self.ids: list[int] = []
        self._greedy = target if isinstance(target, GreedyTarget) else None
        self._pending: dict[str, _PendingDraft] = {}  # by drafter name
        self._drafting_ms = 0.0  # time of the model drafters in this step

    @property
    def cached(self) -> Sequence[int]:
        """See `Pair`."""
        return self.ids[: self.target.length]

    @property
    def room(self) -> int:
        """See `Pair`."""
        return self.target.context - len(self.ids)

    def prefill(self, ids: Sequence[int], interrupt: Interrupt = never_interrupted) -> int:
        """See `Pair`."""
        if not ids:
            raise UsageError("the prompt is empty: at least one token is needed")
        if len(ids) >= self.target.context:
            raise ContextOverflow(f"the prompt has {len(ids)} tokens, the context holds {self.target.context}")
        prompt = list(ids[:-1])
        try:
            self._crop(count_common_prefix(self.cached, prompt))
            cached = self.target.length
            done = self._extend(prompt, cached, interrupt)
            self.target.end_prompt()
        except BaseException:
            self.forget()
            raise
        self.ids = list(ids[: done + 1])
        return done - cached

    def _extend(self, ids: list[int], done: int, interrupt: Interrupt) -> int:
        """Compute ids[done:] chunk by chunk; return the number of leading ids that are computed."""
        while done < len(ids) and not interrupt(done):
            chunk = ids[done : done + self.target.max_width]
            features = self.target.extend(chunk)
            for drafter in self.drafters:
                drafter.observe(chunk, features)
            done += len(chunk)
        return done

    def step(self, sampler: Sampler, limit: int) -> Step:
        """See `Pair`."""
        max_tokens = min(limit, self.room)
        if max_tokens < 1:
            raise ContextOverflow(f"the context of {self.target.context} tokens is full")
        try:
            return self._step(sampler, max_tokens)
        except BaseException:
            self.forget()
            raise

    def _step(self, sampler: Sampler, max_tokens: int) -> Step:
        anchor, self._drafting_ms = self.ids[-1], 0.0
        if self.controller:
            self.controller.costs.set_context_length(self.target.length)
        start_time = time.perf_counter()
        limit = min(max_tokens, self.target.max_width) - 1
        controller = self.controller if self.drafting_enabled else None
        draft = self._draft(controller, anchor, limit, sampler.constraint) if controller else EMPTY_DRAFT
        draft_end = time.perf_counter()
        if sampler.needs_only_argmax and self._greedy:
            likeliest, features = self._greedy.verify_greedy(anchor, draft)
            committed = accept_greedy(draft, likeliest, max_tokens, self.ends)
        else:
            verification = self.target.verify(anchor, draft)
            features = verification.features
            committed = accept(draft, verification.logits, sampler, self.ids, max_tokens, self.ends)
        self.target.keep(len(committed))
        verify_end = time.perf_counter()
        if self.drafters:
            observed_ids = [anchor, *committed[:-1]]
            features = None if features is None else features[: len(observed_ids)].copy()
            for drafter in self.drafters:
                drafter.observe(observed_ids, features)
        self.ids += committed
        draft_ms, verify_ms = (draft_end - start_time) * 1e3, (verify_end - draft_end) * 1e3
        if controller:
            self._record_outcomes(controller)
            ms = (time.perf_counter() - start_time) * 1e3
            controller.record_verify(len(draft) + 1, ms - self._drafting_ms)
        return Step(committed, draft.drafter, len(draft), len(committed) - 1, draft_ms, verify_ms)

    def _draft(self, controller: Controller, anchor: int, limit: int, constraint: Constraint | None) -> Draft:
        """Return the draft with the highest expected rate; a model drafts only if it can beat the other drafts."""
        best, rate = EMPTY_DRAFT, controller.baseline_rate
        if limit < 1:
            return best
        if constraint:
            best, rate = self._choose(controller, _forced_draft(constraint, limit), best, rate)
        lookup, agrees = EMPTY_DRAFT, False
        for drafter in self.drafters:
            length = min(limit, drafter.max_draft_tokens)
            if drafter.is_model:
                rate_to_beat = max(rate, _lookup_rate(controller, lookup))
                if not controller.should_draft(drafter.name, length, rate_to_beat):
                    continue
            draft = self._propose(controller, drafter, anchor, length)
            if constraint:
                draft = draft.first(constraint.count_allowed(draft.tokens))
            if drafter.is_model:
                best, rate = self._choose(controller, draft, best, rate)
                agrees = agrees or draft.tokens[:1] == lookup.tokens[:1]
            else:
                lookup = draft
        best, _ = self._choose(controller, replace(lookup, drafter=AGREED) if agrees else lookup, best, rate)
        return lookup.first(len(best)) if best.drafter == AGREED else best

    def _propose(self, controller: Controller, drafter: Drafter, anchor: int, length: int) -> Draft:
        began = time.perf_counter()
        draft = drafter.propose(anchor, length)
        if drafter.is_model:
            ms = (time.perf_counter() - began) * 1e3
            controller.record_draft(drafter.name, ms)
            self._drafting_ms += ms
        return draft.first(length) if len(draft) > length else draft

    def _choose(self, controller: Controller, draft: Draft, best: Draft, rate: float) -> tuple[Draft, float]:
        """Return the better draft and its expected rate; remember one draft per drafter until its outcome is known."""
        if not draft:
            return best, rate
        if draft.drafter not in self._pending:
            self._pending[draft.drafter] = _PendingDraft(draft, len(self.ids))
        length, expected = controller.choose_prefix(draft)
        return (draft.first(length), expected) if length and expected > rate else (best, rate)

    def _record_outcomes(self, controller: Controller) -> None:
        """Record each pending draft whose outcome the committed tokens decide."""
        for name, (draft, start) in tuple(self._pending.items()):
            actual = self.ids[start:]
            accepted = count_common_prefix(draft.tokens, actual)
            if accepted < len(actual) or accepted == len(draft):
                controller.calibration[name].record_outcome(draft.confidence, accepted)
                del self._pending[name]

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """See `Pair`."""
        for drafter in self.drafters:
            if isinstance(drafter, LookupDrafter):
                drafter.set_documents(documents)

    def forget(self) -> None:
        """Drop the whole sequence."""
        self._crop(0)
        self.ids = []

    def _crop(self, length: int) -> None:
        self._pending.clear()
        self.target.crop(length)
        for drafter in self.drafters:
            drafter.rollback(self.target.length)

    def save(self) -> SavedSequence:
        """See `Pair`."""
        drafters = tuple(drafter.save() for drafter in self.drafters)
        return SavedSequence(tuple(self.cached), self.target.save(), drafters, self.target.is_recurrent)

    def load(self, state: SavedSequence) -> None:
        """See `Pair`; the next call must be `prefill` with ids that continue the state's."""
        self._pending.clear()
        try:
            self.target.load(bytes(state.target), len(state.ids))
            for drafter, saved in zip(self.drafters, state.drafters, strict=True):
                drafter.load(bytes(saved), state.ids)
        except BaseException:
            self.forget()
            raise
        self.ids = list(state.ids)


def _lookup_rate(controller: Controller, lookup: Draft) -> float:
    """Return the expected rate of a lookup draft, which a model must beat; 0 if the draft's confidence is low."""
    if not lookup or lookup.confidence[0] < MIN_LOOKUP_CONFIDENCE:
        return 0.0
    length, expected = controller.choose_prefix(lookup)
    return expected if length else 0.0


def _forced_draft(constraint: Constraint, limit: int) -> Draft:
    tokens = constraint.forced_tokens()[:limit]
    return Draft(GRAMMAR, tokens, [FORCED_CONFIDENCE] * len(tokens))
