"""Runs one request, which may be cancelled or preempted during its prefill or between steps."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localdflash.engine.pair import Cancelled, Pair, Step, never_cancelled
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling import Constraint, Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.stats import Stats


@dataclass
class Request:
    """Ids to continue and options; the fields from `stats` on are results, filled in while the request runs."""

    ids: Sequence[int]
    max_tokens: int  # 0: only fill the KV cache
    params: SamplingParams = field(default_factory=SamplingParams)
    ends: frozenset[int] = frozenset()  # tokens that end the answer
    cancelled: Cancelled = never_cancelled
    on_prefill: Callable[[int], None] | None = None  # called with the number of computed leading ids
    constraint: Constraint | None = None
    top_logprobs: int | None = None  # likeliest tokens to record for each token; None: no probabilities at all
    documents: Sequence[Sequence[int]] = ()  # token ids of texts that lookup drafts may copy from
    draft: bool = True  # False: decode without drafts, for comparisons; the text does not change
    stats: Stats = field(default_factory=Stats)
    queue_ms: float = 0.0  # from submission until a scheduler first ran the request
    computed_tokens: int = 0  # prompt tokens that no cache held
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0  # from the start of the prefill to the end of the first step
    finish_reason: str = ""  # "stop", "length", "context" or "cancelled"

    @property
    def cached_tokens(self) -> int:
        """Number of cached prompt tokens. The last prompt token is never cached: the first step computes it."""
        return max(len(self.ids) - 1 - self.computed_tokens, 0)


class Generation:
    """Running request: call `prefill`, again after other requests used the pair, then `step` until it returns None."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.sampler = Sampler(request.params, request.constraint, request.top_logprobs)
        self.ids = list(request.ids)
        self._began = 0.0

    def prefill(self, pair: Pair, prefixes: PrefixCache | None = None, interrupt: Cancelled = never_cancelled) -> bool:
        """Make this request's ids the pair's sequence; return False if interrupted or cancelled (caches are kept)."""
        request = self.request
        began = time.perf_counter()
        self._began = self._began or began
        pair.ends, pair.drafting_enabled = request.ends, request.draft
        pair.set_documents(request.documents)
        if prefixes:
            prefixes.load_longest(pair, self.ids)
        report = None if request.stats.steps else request.on_prefill

        def should_stop(computed: int) -> bool:
            if report:
                report(computed)
            return interrupt() or request.cancelled()

        computed = pair.prefill(self.ids, should_stop)
        is_complete = len(pair.ids) == len(self.ids)
        if not request.stats.steps:
            request.computed_tokens += computed
            request.prefill_ms += (time.perf_counter() - began) * 1e3
        if report and is_complete:
            report(len(self.ids))
        return is_complete

    def step(self, pair: Pair) -> Step | None:
        """Run one step and return it; None at the end. The last step sets `request.finish_reason`."""
        request = self.request
        if not request.finish_reason:
            request.finish_reason = "cancelled" if request.cancelled() else self._limit_reason(pair)
        if request.finish_reason:
            return None
        before = time.perf_counter()
        step = pair.step(self.sampler, request.max_tokens - request.stats.tokens)
        now = time.perf_counter()
        if not request.stats.steps:
            request.ttft_ms = (now - self._began) * 1e3
        request.stats.add(step, (now - before) * 1e3)
        self.ids += step.tokens
        request.finish_reason = "stop" if step.tokens[-1] in request.ends else self._limit_reason(pair)
        return step

    def _limit_reason(self, pair: Pair) -> str:
        if self.request.stats.tokens >= self.request.max_tokens:
            return "length"
        return "context" if pair.room == 0 else ""


def generate(pair: Pair, request: Request, prefixes: PrefixCache | None = None) -> Iterator[Step]:
    """Yield the steps of one request; the caller may stop reading at any step."""
    generation = Generation(request)
    generation.prefill(pair, prefixes)
    while step := generation.step(pair):
        yield step
