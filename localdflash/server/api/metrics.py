"""The metrics that Prometheus reads. Counters of the engine are read from it on request; only times are collected here.

The engines' numbers are those of all loaded pairs together; a pair's start at 0 when it is loaded.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from localdflash.engine.pair import Step
from localdflash.engine.scheduler import EngineTotals
from localdflash.engine.stats import Stats
from localdflash.server.engines import Engines

PREFIX = "localdflash_"
STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512)  # seconds
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Create it before the engine, whose `observe` it is, and give it to both engine and app."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            PREFIX + "http_requests", "HTTP requests answered", ("endpoint", "status"), registry=self._registry
        )
        self._verify = self._histogram("verify_seconds", "Verifies", STEP_BUCKETS)
        self._draft = self._histogram("draft_seconds", "Drafts", STEP_BUCKETS)
        self._first_token = self._histogram("first_token_seconds", "From request to first token", WAIT_BUCKETS)

    def watch(self, engines: Engines) -> None:
        """Report the counters of these engines too."""
        self._registry.register(_EnginesCollector(engines))

    def observe(self, step: Step) -> None:
        """Count the times of one step. Called on the engine thread."""
        self._verify.observe(step.verify_ms / 1e3)
        if step.drafted:
            self._draft.observe(step.draft_ms / 1e3)

    def first_token(self, seconds: float) -> None:
        """Count how long a client waited for the first token."""
        self._first_token.observe(seconds)

    def answered(self, endpoint: str, status: int) -> None:
        """Count an HTTP request."""
        self._requests.labels(endpoint, str(status)).inc()

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(PREFIX + name, what, buckets=buckets, registry=self._registry)


class _EnginesCollector:
    """Reads the engines' own counters at the moment of asking."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield _gauge("process_resident_bytes", "Memory of the process", psutil.Process().memory_info().rss)
        yield _gauge(
            "model_loaded", "Models that are loaded", sum(one.loaded is not None for one in self._engines.workers)
        )
        if schedulers := [one.scheduler for one in self._engines.workers if one.scheduler]:
            totals = self._engines.totals()
            yield _gauge("queue_length", "Requests that wait", sum(one.queue_length for one in schedulers))
            yield _gauge("requests_running", "Requests under way", sum(one.running is not None for one in schedulers))
            held = sum(one.prefixes.size for one in schedulers if one.prefixes)
            yield _gauge("prefix_cache_bytes", "Memory of the prefix cache", held)
            yield from _of_requests(totals)
            yield from _of_steps(totals.stats)


def _of_requests(totals: EngineTotals) -> Iterator[Metric]:
    yield _counter("requests", "Requests that ended", totals.requests)
    yield _counter("requests_failed", "Requests that ended with an error", totals.failed)
    yield _counter("requests_cancelled", "Requests that were cancelled", totals.cancelled)
    yield _counter("preemptions", "Times that a request made room", totals.preempted)
    yield _counter("prompt_tokens", "Tokens of prompts", totals.prompt_tokens)
    yield _counter("prompt_tokens_reused", "Tokens of prompts that came out of a cache", totals.reused_tokens)
    yield _cancels(list(totals.cancel_ms))


def _of_steps(stats: Stats) -> Iterator[Metric]:
    yield _counter("tokens", "Tokens generated", stats.tokens)
    yield _counter("steps", "Verifies", stats.steps)
    yield _gauge("tokens_per_step", "Tokens per verify (tau)", stats.tau)
    drafted = CounterMetricFamily(PREFIX + "drafted", "Tokens drafted", labels=["slot"])
    accepted = CounterMetricFamily(PREFIX + "accepted", "Drafted tokens that were committed", labels=["slot"])
    for slot, (offered, kept) in enumerate(zip(stats.offered_by_slot, stats.accepted_by_slot, strict=False)):
        drafted.add_metric([str(slot)], offered)
        accepted.add_metric([str(slot)], kept)
    by_drafter = CounterMetricFamily(PREFIX + "drafter_steps", "Steps by drafter", labels=["drafter"])
    for drafter, steps in list(stats.steps_by_drafter.items()):
        by_drafter.add_metric([drafter], steps)
    yield from (drafted, accepted, by_drafter)


def _cancels(times: Sequence[float]) -> Metric:
    """Return the newest times from a cancellation to a free engine (milliseconds)."""
    counts = [0] * (len(STEP_BUCKETS) + 1)
    for time in times:
        counts[bisect_left(STEP_BUCKETS, time / 1e3)] += 1
    bounds = (*map(str, STEP_BUCKETS), "+Inf")
    return GaugeHistogramMetricFamily(
        PREFIX + "cancel_seconds",
        "From a cancellation to a free engine, the newest",
        buckets=list(zip(bounds, map(float, accumulate(counts)), strict=True)),
        gsum_value=sum(times) / 1e3,
    )


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, what, value=value)
