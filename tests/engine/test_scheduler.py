"""Scheduling of requests, of one pair and of two that share a machine: order, cancellation, unchanged texts."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from localdflash.base.errors import DeviceError, EngineDisconnect, LocaldflashError, QueueFull
from localdflash.engine.compute_lock import ComputeLock
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Step
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.scheduler import EngineJob, EngineTotals, Scheduler

Make = Callable[..., Any]
V = 12
PATIENCE = 20.0  # seconds to wait for the engine thread


class Gate:
    """Gate that holds the pair before a step until the test opens it."""

    def __init__(self) -> None:
        self._held, self._passes = threading.Semaphore(0), threading.Semaphore(0)
        self.open = True

    def wait(self) -> None:
        if not self.open:
            self._held.release()
            assert self._passes.acquire(timeout=PATIENCE)

    def hold(self) -> None:
        self.open = False

    def until_held(self) -> None:
        assert self._held.acquire(timeout=PATIENCE)

    def step(self) -> None:
        """Let one step through and wait until the next one is at the gate."""
        self._passes.release()
        self.until_held()

    def release(self) -> None:
        self.open = True
        self._passes.release()


class Gated(HostPair):
    """Pair that waits at a gate before each step, and fails with `error` if it is set."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.gate = Gate()
        self.error: Exception | None = None

    def step(self, sampler: Sampler, limit: int) -> Step:
        self.gate.wait()
        if self.error:
            error, self.error = self.error, None
            raise error
        return super().step(sampler, limit)


class Watched:
    """Job with its result."""

    def __init__(self, request: Request, log: list[str] | None = None, name: str = "", **options: Any) -> None:
        self.request, self.tokens = request, list[int]()
        self.error: BaseException | None = AssertionError("it has not ended")
        self.ended, self._ends = threading.Event(), 0
        self._log, self._name = log if log is not None else [], name
        self.job = EngineJob(request, self._on_step, self._on_end, **options)

    def _on_step(self, step: Step) -> bool:
        self.tokens += step.tokens
        self._log.append(self._name)
        return True

    def _on_end(self, error: BaseException | None) -> None:
        self.error, self._ends = error, self._ends + 1
        assert self._ends == 1, "a job ended twice"
        self.ended.set()

    def wait(self) -> "Watched":
        assert self.ended.wait(PATIENCE)
        return self


def make_pair(fake_target: Make, fake_drafter: Make, eager: Make) -> Gated:
    table = np.random.default_rng(5).normal(size=(V, V, V)).astype(np.float32)

    def invent(ids: list[int], limit: int) -> Any:
        count = min(limit, 3)
        return [(ids[-1] + i) % V for i in range(count)], [0.9] * count

    return Gated(fake_target(table, context=400), [fake_drafter("guess", invent)], eager("guess"))


@pytest.fixture
def pair(fake_target: Make, fake_drafter: Make, eager: Make) -> Gated:
    return make_pair(fake_target, fake_drafter, eager)


@pytest.fixture
def offline(fake_target: Make, fake_drafter: Make, eager: Make) -> Callable[[Request], list[int]]:
    """Return a function that returns the tokens of a request on an unshared pair."""

    def tokens(request: Request) -> list[int]:
        unshared = make_pair(fake_target, fake_drafter, eager)
        again = Request(request.ids, request.max_tokens, request.params, request.ends)
        return [token for step in generate(unshared, again) for token in step.tokens]

    return tokens


@contextmanager
def running(pair: Gated, compute_lock: ComputeLock) -> Iterator[Scheduler]:
    running_scheduler = Scheduler(pair, PrefixCache(1 << 20), limit=8, compute_lock=compute_lock)
    thread = threading.Thread(target=running_scheduler.run)
    thread.start()
    try:
        yield running_scheduler
    finally:
        running_scheduler.close()
        pair.gate.release()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def scheduler(pair: Gated) -> Iterator[Scheduler]:
    with running(pair, ComputeLock()) as running_scheduler:
        yield running_scheduler


def chat(tokens: int = 30, **options: Any) -> Request:
    return Request([1, 2, 3] * 12, tokens, **options)


def completion(first: int = 4) -> Request:
    return Request([first, 5, 6, 7] * 10, 6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_completion_goes_before_the_next_step_of_a_chat_whose_text_stays_the_same(
    scheduler: Scheduler, pair: Gated, offline: Callable[[Request], list[int]], temperature: float
) -> None:
    log: list[str] = []
    talk = Watched(chat(params=SamplingParams(temperature, seed=3)), log, "chat")
    pair.gate.hold()
    scheduler.submit(talk.job)
    pair.gate.until_held()
    typed = Watched(completion(), log, "completion", urgent=True)
    scheduler.submit(typed.job)
    before = sum(pair.target.extended)  # type: ignore[attr-defined]
    pair.gate.release()
    typed.wait()
    talk.wait()
    assert sum(pair.target.extended) - before == len(typed.request.ids) - 1  # type: ignore[attr-defined]
    after = log.index("completion")
    assert after <= 1, "the chat took another step first"
    assert set(log[after : after + log.count("completion")]) == {"completion"}
    assert talk.tokens == offline(talk.request)
    assert typed.tokens == offline(typed.request)
    assert scheduler.totals.preempted == 1


def test_prefill_is_preempted_by_a_completion(
    scheduler: Scheduler, pair: Gated, offline: Callable[[Request], list[int]]
) -> None:
    talk = Watched(Request([1, 2, 3, 4] * 60, 5))
    typed = Watched(completion(), urgent=True)
    extend = pair.target.extend

    def extend_and_submit(ids: Any) -> Any:
        if pair.target.length == 66:
            scheduler.submit(typed.job)
        return extend(ids)

    pair.target.extend = extend_and_submit  # type: ignore[method-assign]
    scheduler.submit(talk.job)
    assert talk.wait().tokens == offline(talk.request)
    assert typed.wait().tokens == offline(typed.request)
    assert scheduler.totals.preempted == 1
    assert talk.request.computed_tokens == 239  # tokens computed before the preemption count once


def test_newest_job_of_a_document_cancels_older_ones(scheduler: Scheduler, pair: Gated) -> None:
    pair.gate.hold()
    first = Watched(completion(1), urgent=True, document="a.py")
    scheduler.submit(first.job)
    pair.gate.until_held()
    second = Watched(completion(2), urgent=True, document="a.py")
    other = Watched(completion(3), urgent=True, document="b.py")
    scheduler.submit(second.job)
    scheduler.submit(other.job)
    third = Watched(completion(8), urgent=True, document="a.py")
    scheduler.submit(third.job)
    assert second.wait().request.finish_reason == "cancelled"  # at once: it had not started
    assert second.tokens == []
    pair.gate.release()
    assert first.wait().request.finish_reason == "cancelled"
    assert first.request.stats.steps == 1  # the running step
    assert other.wait().request.finish_reason == third.wait().request.finish_reason == "length"


def test_totals_count_what_was_measured(scheduler: Scheduler, pair: Gated) -> None:
    talk = Watched(chat(tokens=8))
    scheduler.submit(talk.job)
    talk.wait()
    pair.gate.hold()
    cancelled = Watched(completion())
    scheduler.submit(cancelled.job)
    pair.gate.until_held()
    cancelled.job.cancelled_at = time.perf_counter() - 5.0
    pair.gate.release()
    cancelled.wait()
    totals = EngineTotals()
    totals.add(scheduler.totals)
    totals.add(scheduler.totals)
    assert (totals.requests, totals.cancelled, totals.failed, totals.preempted) == (4, 2, 0, 0)
    assert all(5e3 <= ms < 5e3 + PATIENCE * 1e3 for ms in totals.cancel_ms)
    stats = talk.request.stats
    assert scheduler.totals.stats.total_ms >= stats.draft_ms + stats.verify_ms > 0


def test_full_queue_refuses_requests(scheduler: Scheduler, pair: Gated) -> None:
    pair.gate.hold()
    jobs = [Watched(chat(2)) for _ in range(9)]
    scheduler.submit(jobs[0].job)
    pair.gate.until_held()
    for watched in jobs[1:]:
        scheduler.submit(watched.job)
    with pytest.raises(QueueFull, match="8 requests"):
        scheduler.submit(Watched(chat()).job)
    replacing = Watched(completion(), document="x", urgent=True)
    with pytest.raises(QueueFull):
        scheduler.submit(replacing.job)
    pair.gate.release()
    for watched in jobs:
        watched.wait()
    assert scheduler.queue_length == 0


def test_a_request_that_fails_leaves_the_engine_alive(
    scheduler: Scheduler, pair: Gated, offline: Callable[[Request], list[int]]
) -> None:
    pair.error = LocaldflashError("no numbers")
    failed = Watched(chat())
    scheduler.submit(failed.job)
    assert str(failed.wait().error) == "no numbers"
    impossible = Watched(Request([], 3))
    scheduler.submit(impossible.job)
    assert "empty" in str(impossible.wait().error)
    fine = Watched(chat())
    scheduler.submit(fine.job)
    assert fine.wait().tokens == offline(fine.request)
    assert (scheduler.totals.failed, scheduler.totals.requests) == (2, 3)


def test_a_lost_device_ends_every_job(pair: Gated) -> None:
    scheduler = Scheduler(pair)
    pair.error = DeviceError("gone")
    jobs = [Watched(chat()) for _ in range(3)]
    for watched in jobs:
        scheduler.submit(watched.job)
    with pytest.raises(DeviceError):
        scheduler.run()
    assert all(isinstance(watched.wait().error, DeviceError) for watched in jobs)
    with pytest.raises(EngineDisconnect):
        scheduler.submit(Watched(chat()).job)


def test_close_cancels_and_drain_finishes(pair: Gated) -> None:
    for end, finishes in (("close", {"cancelled"}), ("drain", {"length"})):
        scheduler = Scheduler(pair)
        pair.gate.hold()
        jobs = [Watched(chat(9)) for _ in range(3)]
        for watched in jobs:
            scheduler.submit(watched.job)
        thread = threading.Thread(target=scheduler.run)
        thread.start()
        pair.gate.until_held()
        getattr(scheduler, end)()
        pair.gate.release()
        thread.join(PATIENCE)
        assert {watched.wait().request.finish_reason for watched in jobs} == finishes


def test_a_storm_of_jobs_and_cancels_changes_no_text(
    scheduler: Scheduler, offline: Callable[[Request], list[int]]
) -> None:
    rng = np.random.default_rng(1)
    jobs: list[Watched] = []
    for i in range(300):
        ids = rng.integers(0, V, int(rng.integers(1, 80))).tolist()
        urgent = bool(rng.integers(2))
        watched = Watched(
            Request(ids, int(rng.integers(0, 20))), urgent=urgent, document=f"{i % 5}" if urgent else None
        )
        while scheduler.queue_length >= 7:
            next(job for job in jobs if not job.ended.is_set()).wait()
        scheduler.submit(watched.job)
        jobs.append(watched)
        if rng.integers(4) == 0:
            scheduler.cancel(jobs[int(rng.integers(len(jobs)))].job)
    for watched in jobs:
        watched.wait()
        expected = offline(watched.request)
        assert watched.error is None
        if watched.request.finish_reason == "cancelled":
            assert watched.tokens == expected[: len(watched.tokens)]
        else:
            assert watched.tokens == expected
    assert scheduler.totals.requests == len(jobs)
    ran = [job.request for job in jobs if job.request.stats.steps]
    assert scheduler.totals.prompt_tokens == sum(len(request.ids) for request in ran)
    assert scheduler.totals.reused_tokens == sum(
        max(len(request.ids) - 1 - request.computed_tokens, 0) for request in ran
    )
    assert scheduler.running is None


@pytest.fixture
def pairs(fake_target: Make, fake_drafter: Make, eager: Make) -> list[Gated]:
    """Return the chat pair and the completion pair."""
    return [make_pair(fake_target, fake_drafter, eager) for _ in range(2)]


@pytest.fixture
def both(pairs: list[Gated]) -> Iterator[list[Scheduler]]:
    compute_lock = ComputeLock()
    with running(pairs[0], compute_lock) as first, running(pairs[1], compute_lock) as second:
        yield [first, second]


def test_a_completion_of_another_pair_goes_between_two_steps_of_a_chat(
    pairs: list[Gated], both: list[Scheduler], offline: Callable[[Request], list[int]]
) -> None:
    log: list[str] = []
    talk, filled = Watched(chat(30), log, "chat"), Watched(completion(), log, "completion", urgent=True)
    pairs[0].gate.hold()
    both[0].submit(talk.job)
    pairs[0].gate.until_held()
    both[1].submit(filled.job)
    assert not filled.ended.wait(0.05), "two pairs computed at the same time"
    pairs[0].gate.step()  # the chat's first step; the whole completion runs before the second
    assert filled.wait().tokens == offline(filled.request)
    assert log[0] == "chat"
    assert set(log[1:]) == {"completion"}
    pairs[0].gate.release()
    assert talk.wait().tokens == offline(talk.request)
    assert both[0].totals.preempted == 0, "its own pair keeps its place"
    assert talk.request.computed_tokens == len(talk.request.ids) - 1, "nothing is computed again"


def test_chat_prefill_is_preempted_by_another_pairs_completion(pairs: list[Gated], both: list[Scheduler]) -> None:
    """A prefill is preempted between two chunks, as an answer is between two steps."""
    order: list[str] = []
    chunk, begun, go_on = pairs[0].target.extend, threading.Event(), threading.Event()

    def extend(ids: Any) -> Any:
        order.append("chunk")
        if len(order) == 1:
            begun.set()
            assert go_on.wait(PATIENCE)
        return chunk(ids)

    pairs[0].target.extend = extend  # type: ignore[method-assign]
    talk = Watched(Request([1, 2, 3] * 60, 2))
    filled = Watched(completion(), order, "completion", urgent=True)
    both[0].submit(talk.job)
    assert begun.wait(PATIENCE)
    both[1].submit(filled.job)
    while not both[1].running or not both[1]._compute_lock._waiting_urgent:
        pass
    go_on.set()
    filled.wait()
    talk.wait()
    assert order.index("completion") == 1, order
    assert order.count("chunk") > 2


def test_error_releases_the_compute_lock(pairs: list[Gated], both: list[Scheduler]) -> None:
    pairs[1].error = RuntimeError("a step broke")
    filled = Watched(completion(), urgent=True)
    both[1].submit(filled.job)
    assert isinstance(filled.wait().error, RuntimeError)
    talk = Watched(chat(5))
    both[0].submit(talk.job)
    assert talk.wait().error is None
