"""One request from ids to ids: prefill what is not cached, then step until an end, the limit or a cancellation.

Cancellation is read between steps, so a cancelled request stops within one step. The generator yields after each step;
whoever reads it may stop reading at any step, and the pair's sequence then ends there.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localdflash.engine.pair import Cancelled, Pair, Step, never
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling import Sampler, SamplingParams
from localdflash.engine.stats import Stats


@dataclass
class Request:
    """What to go on with, and how. `stats` fills while the request runs."""

    ids: Sequence[int]
    max_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    ends: frozenset[int] = frozenset()
    cancelled: Cancelled = never
    stats: Stats = field(default_factory=Stats)
    computed: int = 0  # prompt tokens that no cache held
    first_token_ms: float = 0.0
    finish: str = ""  # "stop", "length", "context" or "cancelled"


def generate(pair: Pair, request: Request, prefixes: PrefixCache | None = None) -> Iterator[Step]:
    """Steps of one request; ends are committed and yielded as the last token of their step."""
    began = time.perf_counter()
    sampler = Sampler(request.params)
    pair.ends = request.ends
    if prefixes:
        prefixes.prepare(pair, request.ids)
    request.computed = pair.prefill(request.ids, request.cancelled)
    left = request.max_tokens
    while left > 0:
        if request.cancelled():
            request.finish = "cancelled"
            return
        if pair.room == 0:
            request.finish = "context"
            return
        before = time.perf_counter()
        step = pair.step(sampler, left)
        now = time.perf_counter()
        if not request.stats.steps:
            request.first_token_ms = (now - began) * 1e3
        request.stats.add(step, (now - before) * 1e3)
        left -= len(step.tokens)
        yield step
        if step.tokens[-1] in request.ends:
            request.finish = "stop"
            return
    request.finish = "length"
