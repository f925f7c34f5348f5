"""Metrics for Prometheus, summed over all loaded pairs. Loading a pair starts its counters at 0."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from localdflash.engine.pair import Step
from localdflash.engine.scheduler import EngineTotals, Scheduler
from localdflash.server.engines import Engines

PREFIX = "localdflash_"
STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512)  # upper bounds in seconds
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds in seconds


class Metrics:
    """Metrics of a daemon. HTTP handlers update them; engine threads call `observe` after each step."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            PREFIX + "http_requests", "HTTP requests answered", ("endpoint", "status"), registry=self._registry
        )
        self._verify = Histogram(
            PREFIX + "verify_seconds", "Verify steps", buckets=STEP_BUCKETS, registry=self._registry
        )
        self._draft = Histogram(PREFIX + "draft_seconds", "Drafts", buckets=STEP_BUCKETS, registry=self._registry)
        self._first_token = Histogram(
            PREFIX + "first_token_seconds", "From request to first token", buckets=WAIT_BUCKETS, registry=self._registry
        )

    def watch(self, engines: Engines) -> None:
        """Include the counters of `engines` in the metrics."""
        self._registry.register(_EnginesCollector(engines))

    def observe(self, step: Step) -> None:
        """Record the verify and draft times of one step. Called on the engine thread."""
        self._verify.observe(step.verify_ms / 1e3)
        if step.drafted:
            self._draft.observe(step.draft_ms / 1e3)

    def record_first_token(self, seconds: float) -> None:
        """Record the time to first token of an HTTP request."""
        self._first_token.observe(seconds)

    def count_request(self, endpoint: str, status: int) -> None:
        """Count an answered HTTP request."""
        self._requests.labels(endpoint, str(status)).inc()

    def render(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _EnginesCollector:
    """Collector that reads the engines' counters whenever the metrics are rendered."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; prometheus_client calls this method."""
        workers = self._engines.workers
        yield _gauge("process_resident_bytes", "Memory of the process", psutil.Process().memory_info().rss)
        yield _gauge("model_loaded", "Models that are loaded", sum(one.loaded is not None for one in workers))
        if schedulers := [one.scheduler for one in workers if one.scheduler]:
            yield _gauge("queue_length", "Requests waiting", sum(one.queue_length for one in schedulers))
            yield _gauge("requests_running", "Requests running", sum(one.running is not None for one in schedulers))
            yield _gauge("prefix_cache_bytes", "Memory of the prefix cache", sum(one.prefix_bytes for one in workers))
            yield from _engine_metrics(self._engines.totals())
            yield from _llama_server_metrics(self._engines.totals(), schedulers)


def _engine_metrics(totals: EngineTotals) -> Iterator[Metric]:
    stats = totals.stats
    for name, description, count in (
        ("requests", "Requests that ended", totals.requests),
        ("requests_failed", "Requests that ended with an error", totals.failed),
        ("requests_cancelled", "Requests that were cancelled", totals.cancelled),
        ("preemptions", "Requests that were preempted by a more urgent request", totals.preempted),
        ("prompt_tokens", "Prompt tokens", totals.prompt_tokens),
        ("prompt_tokens_reused", "Cached prompt tokens", totals.reused_tokens),
        ("tokens", "Tokens generated", stats.tokens),
        ("steps", "Verify steps", stats.steps),
    ):
        yield CounterMetricFamily(PREFIX + name, description, value=count)
    yield _gauge("tokens_per_step", "Tokens per verify step (tau)", stats.tau)
    yield _counters("drafted", "Tokens drafted", "slot", enumerate(list(stats.offered_by_slot)))
    yield _counters("accepted", "Drafted tokens that were committed", "slot", enumerate(list(stats.accepted_by_slot)))
    yield _counters("drafter_steps", "Steps by drafter", "drafter", list(stats.steps_by_drafter.items()))
    yield _cancel_histogram(list(totals.cancel_ms))


def _llama_server_metrics(totals: EngineTotals, schedulers: Sequence[Scheduler]) -> Iterator[Metric]:
    """Yield metrics under llama-server's names, for dashboards made for llama-server."""
    stats = totals.stats
    seconds = stats.total_ms / 1e3
    for name, description, count in (
        ("prompt_tokens", "Prompt tokens processed", totals.prompt_tokens - totals.reused_tokens),
        ("tokens_predicted", "Tokens generated", stats.tokens),
        ("tokens_predicted_seconds", "Time of generation", seconds),
        ("n_decode", "Verify steps", stats.steps),
        ("spec_decode_num_draft_tokens", "Tokens drafted", stats.drafted),
        ("spec_decode_num_accepted_tokens", "Drafted tokens that were committed", stats.accepted),
    ):
        yield CounterMetricFamily(f"llamacpp:{name}", description, value=count)
    for name, description, value in (
        ("predicted_tokens_seconds", "Tokens generated per second", stats.tokens / seconds if seconds else 0.0),
        ("requests_processing", "Requests running", sum(one.running is not None for one in schedulers)),
        ("requests_deferred", "Requests waiting", sum(one.queue_length for one in schedulers)),
    ):
        yield GaugeMetricFamily(f"llamacpp:{name}", description, value=value)


def _cancel_histogram(times: Sequence[float]) -> Metric:
    """Return a histogram of the newest times, in ms, from a cancellation until the engine was free."""
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


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, description, value=value)


def _counters(name: str, description: str, label: str, counts: Iterable[tuple[object, int]]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, description, labels=[label])
    for value, count in counts:
        family.add_metric([str(value)], count)
    return family
