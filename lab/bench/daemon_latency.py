"""Latency of the daemon for its clients: completions alone and next to a streaming chat, cancellations, round trips.

Completions alone and next to a chat alternate in short blocks. Times are measured by the client, in milliseconds,
unless the daemon reports them.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from localdflash.lab.bench.pace import CountItems
from localdflash.lab.bench.prompt_set import BenchPrompt, load
from localdflash.lab.bench.spread import percentile, spread
from localdflash.server.client import Client

COMPLETIONS_PER_BLOCK = 10  # a block runs either next to a streaming chat or alone
COMPLETION_TOKENS = 32
PAUSE_SECONDS = 0.05  # pause between two completions, as in fast typing
MAX_CANCELS, MAX_ROUND_TRIPS = 100, 500
CHAT_TOKENS = 400
QUESTION = "Write a Python class for a queue with push, pop, peek, a length and an iterator. Version {}."


@dataclass
class CompletionTimes:
    """Times of one series of completions, in milliseconds."""

    name: str
    total_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    queue_ms: list[float] = field(default_factory=list)  # time until the engine starts the request

    def report(self) -> dict[str, Any]:
        """Return the times as JSON values."""
        times = {"total_ms": self.total_ms, "first_token_ms": self.first_ms, "queue_ms": self.queue_ms}
        return {"completions": len(self.total_ms), **{name: spread(values) for name, values in times.items()}}


def run(client: Client, completions: int, count: CountItems) -> dict[str, Any]:
    """Time `completions` completions alone and as many next to a chat, then cancellations and round trips.

    Fewer `completions` also mean fewer cancellations and round trips.
    """
    prompts = [prompt for prompt in load() if prompt.category in ("fim_block", "fim_line")]
    warm, alone, next_to_chat, steps = (
        CompletionTimes("warm"),
        CompletionTimes("alone"),
        CompletionTimes("beside"),
        list[float](),
    )
    for number, prompt in enumerate(prompts[: min(COMPLETIONS_PER_BLOCK, completions)]):
        _complete(client, prompt, number, warm)
    for block, start in enumerate(range(0, completions, COMPLETIONS_PER_BLOCK)):
        numbers = range(start, min(start + COMPLETIONS_PER_BLOCK, completions))
        for series in (alone, next_to_chat) if block % 2 else (next_to_chat, alone):
            with _streaming_chat(client, steps) if series is next_to_chat else nullcontext():
                for number in numbers:
                    _complete(client, prompts[number % len(prompts)], number, series)
                    count(len(alone.total_ms) + len(next_to_chat.total_ms), 2 * completions, "completions")
    ratio = percentile(next_to_chat.total_ms, 95) / percentile(alone.total_ms, 95)
    return {
        "engine": {key: value for key, value in client.get("/ps").items() if key in ("pair", "backend", "context")},
        "alone": alone.report(),
        "beside_a_chat": next_to_chat.report(),
        "p95_beside_over_alone": round(ratio, 3),
        "chat_step_ms": spread(steps),
        "queue_in_chat_steps_p95": round(percentile(next_to_chat.queue_ms, 95) / max(median(steps), 1e-3), 2),
        "cancel_to_free_ms": _measure_cancels(client, min(MAX_CANCELS, completions)),
        "round_trip_ms": spread(list(_round_trips_ms(client, min(MAX_ROUND_TRIPS, 10 * completions)))),
    }


def _complete(client: Client, prompt: BenchPrompt, number: int, series: CompletionTimes) -> None:
    """Time one completion and append to `series`. The prompt begins with a unique line, so no KV cache contains it."""
    body = {
        "input_prefix": f"# {series.name} {number}\n{prompt.prefix}",
        "input_suffix": prompt.suffix,
        "n_predict": COMPLETION_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    time.sleep(PAUSE_SECONDS)
    began, first = time.perf_counter(), 0.0
    for event in client.stream("/infill", body):
        first = first or time.perf_counter() - began
        if event.get("stop"):
            series.queue_ms.append(event["timings"]["queue_ms"])
    series.total_ms.append((time.perf_counter() - began) * 1e3)
    series.first_ms.append(first * 1e3)


@contextmanager
def _streaming_chat(client: Client, steps: list[float]) -> Iterator[None]:
    """Stream chats in a thread until the context exits; append the milliseconds of their steps to `steps`.

    An error of a chat is raised when the context exits.
    """
    stop, started = threading.Event(), threading.Event()

    def talk() -> None:
        for number in itertools.count():
            for event in client.stream("/v1/chat/completions", _chat_body(number)):
                started.set()
                if step := event.get("step"):
                    steps.append(step["ms"])
                if stop.is_set():
                    return

    with ThreadPoolExecutor(1) as pool:
        chat = pool.submit(talk)
        chat.add_done_callback(lambda _: started.set())
        try:
            started.wait()
            yield
        finally:
            stop.set()
            chat.result()


def _chat_body(number: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": QUESTION.format(number)}],
        "max_tokens": CHAT_TOKENS,
        "temperature": 1.0,
        "seed": number,
        "stream": True,
        "steps": True,
    }


def _measure_cancels(client: Client, requests: int) -> dict[str, float]:
    """Cancel chats; return the daemon's histogram of the time until the engine is free again, as counts by bound."""
    before = _cancel_buckets(client)
    for number in range(requests):
        events = client.stream("/v1/chat/completions", _chat_body(number))
        next(iter(events))
        events.close()
    while client.get("/ps")["running"]:
        time.sleep(0.01)
    return {bound: count - before.get(bound, 0.0) for bound, count in _cancel_buckets(client).items()}


def _cancel_buckets(client: Client) -> dict[str, float]:
    """Return the daemon's cumulative counts of cancellations by their time, with keys like `<= 10` in milliseconds."""
    text = client.get_text("/metrics")
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        f"<= {float(sample.labels['le']) * 1e3:g}": sample.value
        for sample in samples
        if sample.name == "localdflash_cancel_seconds_bucket"
    }


def _round_trips_ms(client: Client, requests: int) -> Iterator[float]:
    for _ in range(requests):
        began = time.perf_counter()
        client.health()
        yield (time.perf_counter() - began) * 1e3
