"""Pairs, prefix cache and scheduler over a recurrent target: texts stay those of autoregressive decoding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.engine.draft import Draft
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Step
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.prefix_disk import DiskCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.scheduler import EngineJob, Scheduler
from tests.support.counting_target import VOCABULARY, CountingTarget, text_after
from tests.support.guessing import Eager, Guessing

GREEDY = SamplingParams(temperature=0.0)
DOCUMENTS = np.random.default_rng(0).integers(0, VOCABULARY, (2, 150)).tolist()


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Return the beginning of a document, followed by typed tokens."""
    document, length = draw(st.sampled_from(DOCUMENTS)), draw(st.integers(1, 150))
    return [*document[:length], *draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=3))]


class Asked:
    """Request to a scheduler and its result; it submits others at its first token, and stops after `stop_after`."""

    def __init__(self, ids: list[int], stop_after: int, urgent: bool, followers: Sequence["Asked"] = ()) -> None:
        self.ids, self.stop_after, self.others = ids, stop_after, followers
        self.tokens: list[int] = []
        self.job = EngineJob(Request(ids, 60, GREEDY), self._on_step, self._on_end, urgent)
        self.error: BaseException | None = AssertionError("it has not ended")

    def submit(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        scheduler.submit(self.job)

    def _on_step(self, step: Step) -> bool:
        if not self.tokens:
            for other in self.others:
                other.submit(self.scheduler)
        self.tokens += step.tokens
        if len(self.tokens) > self.stop_after:
            self.scheduler.cancel(self.job)
        return True

    def _on_end(self, error: BaseException | None) -> None:
        self.error = error
        if not self.scheduler.queue_length:
            self.scheduler.drain()


def asked(inner: st.SearchStrategy[list[Asked]]) -> st.SearchStrategy[Asked]:
    return st.builds(Asked, prompts(), st.sampled_from([2, 9, 99]), st.booleans(), inner)


JOBS = st.lists(asked(st.lists(asked(st.just([])), max_size=2)), min_size=1, max_size=6)


class Oracle(Guessing):
    """Drafter that knows the continuation of any sequence, and drafts it with errors."""

    def propose(self, anchor: int, limit: int) -> Draft:
        sequence = [*self.ids, anchor]
        self.coming = [*sequence, *text_after(sequence, min(limit, self.max_draft_tokens))]
        return super().propose(anchor, limit)


def make_pair(apart: int, seed: int = 0) -> HostPair:
    target: Any = CountingTarget(apart)
    return HostPair(target, [Oracle(VOCABULARY, 8, seed)], Eager({1: 1.0, 2: 1.0}, {"guess": 0.0}))


def state_of(pair: HostPair) -> list[int]:
    target: Any = pair.target
    return list(target.state)


@settings(max_examples=25)
@given(jobs=JOBS, apart=st.integers(8, 60), budget=st.sampled_from([0, 3000, 1 << 30]), seed=st.integers(0, 99))
def test_texts_match_autoregressive_decoding(jobs: list[Asked], apart: int, budget: int, seed: int) -> None:
    """Preempted, cancelled and cached requests get the text of autoregressive decoding."""
    pair = make_pair(apart, seed)
    scheduler = Scheduler(pair, PrefixCache(budget))
    for job in jobs:
        job.submit(scheduler)
    scheduler.run()
    for one in [one for job in jobs for one in (job, *job.others)]:
        assert one.error is None
        assert one.tokens == text_after(one.ids, len(one.tokens))
        assert one.job.request.finish_reason in ("length", "context", "cancelled")
        assert one.tokens
    assert state_of(pair) == pair.ids[:-1]


def test_new_process_continues_from_saved_states(tmp_path: Path) -> None:
    ids, ended = DOCUMENTS[0][:100], make_pair(apart=16)
    text = [token for step in generate(ended, Request(ids, 20, GREEDY)) for token in step.tokens]
    PrefixCache(1 << 20, DiskCache(tmp_path, "model", 1 << 20)).write_to_disk(ended)
    for prompt, computed in (([*ids, *text, 7], 1), (ids, 99)):
        prefixes = PrefixCache(1 << 20, DiskCache(tmp_path, "model", 1 << 20))
        request = Request(prompt, 8, GREEDY)
        found = [token for step in generate(make_pair(apart=16), request, prefixes) for token in step.tokens]
        assert found == text_after(prompt, 8)
        assert request.computed_tokens == computed
