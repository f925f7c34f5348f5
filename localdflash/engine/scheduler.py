"""Decides which request uses the pair: urgent requests first, and only the newest request of each document.

Any thread may call `submit` and `cancel`. The engine thread calls `run`, which calls the callbacks of jobs. A job that
is cancelled while queued ends on the thread that cancels it. A running job is cancelled or preempted between steps. A
preempted job returns to the head of its queue and continues from its KV cache (`PrefixCache`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from localdflash.base.errors import DeviceError, EngineDisconnect, QueueFull
from localdflash.engine.compute_lock import ComputeLock
from localdflash.engine.generate import Generation, Request
from localdflash.engine.pair import Pair, Step
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.stats import Stats

OnStep = Callable[[Step], bool]  # returns False to end the job after this step
OnEnd = Callable[[BaseException | None], None]  # called with the error that ended the job, or None


@dataclass(eq=False)
class EngineJob:
    """A request with callbacks for each step and for the end; `on_end` is called exactly once."""

    request: Request
    on_step: OnStep
    on_end: OnEnd
    urgent: bool = False  # a completion: runs before every job that is not urgent
    document: str | None = None  # a newer job of the same document cancels this one
    submitted_at: float = field(default_factory=time.perf_counter)  # seconds, like `cancelled_at`
    cancelled_at: float | None = None

    def __post_init__(self) -> None:
        is_cancelled = self.request.cancelled
        self.request.cancelled = lambda: self.cancelled_at is not None or is_cancelled()
        self.generation = Generation(self.request)

    def mark_cancelled(self) -> None:
        """Record the time of the first cancellation."""
        self.cancelled_at = self.cancelled_at or time.perf_counter()


@dataclass
class EngineTotals:
    """Totals of an engine since it started."""

    stats: Stats = field(default_factory=Stats)
    requests: int = 0  # requests that ended, for any reason
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0
    prompt_tokens: int = 0  # prompt tokens of requests that took a step
    reused_tokens: int = 0  # number of these that a cache held
    cancel_ms: deque[float] = field(
        default_factory=lambda: deque(maxlen=1000)
    )  # newest times from a cancellation to a free engine

    def add(self, other: "EngineTotals") -> None:
        """Add the totals of another engine."""
        self.stats.merge(other.stats)
        for name in ("requests", "failed", "cancelled", "preempted", "prompt_tokens", "reused_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.cancel_ms.extend(list(other.cancel_ms))


class Scheduler:
    """Queue of jobs for one pair. `limit`: maximum number of queued jobs."""

    def __init__(
        self, pair: Pair, prefixes: PrefixCache | None = None, limit: int = 64, compute_lock: ComputeLock | None = None
    ) -> None:
        self.pair, self.prefixes = pair, prefixes
        self.totals = EngineTotals()
        self.running: EngineJob | None = None
        self._limit, self._compute_lock = limit, compute_lock or ComputeLock()
        self._urgent, self._not_urgent = deque[EngineJob](), deque[EngineJob]()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def queue_length(self) -> int:
        """Number of queued jobs."""
        return len(self._urgent) + len(self._not_urgent)

    @property
    def is_busy(self) -> bool:
        """Return whether a job is running or queued."""
        with self._changed:
            return bool(self._jobs())

    @property
    def is_answering(self) -> bool:
        """Return whether a job that generates tokens is running or queued, not only prefills."""
        with self._changed:
            return any(job.request.max_tokens for job in self._jobs())

    def submit(self, job: EngineJob) -> None:
        """Queue a job and cancel older jobs of its document; QueueFull, or EngineDisconnect if the engine stopped."""
        with self._changed:
            if self._closed:
                raise EngineDisconnect("the engine has stopped; start it again")
            older = [other for other in self._jobs() if job.document and other.document == job.document]
            removed_jobs = [other for other in older if self._withdraw(other)]
            is_full = self.queue_length >= self._limit
            if not is_full:
                (self._urgent if job.urgent else self._not_urgent).append(job)
                self._changed.notify()
        for other in removed_jobs:
            self._end(other)
        if is_full:
            raise QueueFull(f"the queue is full ({self._limit} requests are waiting); try again in a moment")

    def cancel(self, job: EngineJob) -> None:
        """Stop a job: within one step if it is running, at once if it is queued. Do nothing if it has ended."""
        with self._changed:
            was_queued = self._withdraw(job)
        if was_queued:
            self._end(job)

    def cancel_all(self) -> None:
        """Stop every running or queued job; new ones may be submitted."""
        with self._changed:
            jobs = self._jobs()
        for job in jobs:
            self.cancel(job)

    def _withdraw(self, job: EngineJob) -> bool:
        """Mark a job as cancelled and remove it from the queue; return whether it was queued."""
        job.mark_cancelled()
        queue = self._urgent if job.urgent else self._not_urgent
        if job not in queue:
            return False
        queue.remove(job)
        return True

    def run(self) -> None:
        """Run jobs until `close`; call this on the engine thread. DeviceError ends every job and is raised."""
        while (job := self._wait_for_job()) is not None:
            self._run_job(job)

    def drain(self) -> None:
        """Accept no more jobs; `run` returns when the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self, error: BaseException | None = None) -> None:
        """Accept no more jobs and end queued jobs, with `error` if given; `run` returns after the current step."""
        with self._changed:
            self._closed = True
            queued = [*self._urgent, *self._not_urgent]
            for job in self._jobs():
                job.mark_cancelled()
            self._urgent.clear()
            self._not_urgent.clear()
            self._changed.notify()
        for job in queued:
            self._end(job, error)

    def _wait_for_job(self) -> EngineJob | None:
        """Wait for a job, urgent ones first, and mark it as running; None if the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._not_urgent or self._closed)
            if self._urgent or self._not_urgent:
                self.running = (self._urgent or self._not_urgent).popleft()
                return self.running
            return None

    def _run_job(self, job: EngineJob) -> None:
        request = job.request
        error: Exception | None = None
        try:
            with self._compute_lock.hold(job.urgent):
                request.queue_ms = request.queue_ms or (time.perf_counter() - job.submitted_at) * 1e3
                is_preempted = self._run_steps(job)
            if is_preempted and self._requeue(job):
                return
        except Exception as exception:  # the request fails, the engine continues
            error = exception
        with self._changed:
            self.running = None
        if job.cancelled_at is not None:
            self.totals.cancel_ms.append((time.perf_counter() - job.cancelled_at) * 1e3)
        self._end(job, error)
        if isinstance(error, DeviceError):
            self.close(error)
            raise error

    def _run_steps(self, job: EngineJob) -> bool:
        """Run steps until the job ends (return False) or an urgent job preempts it (return True)."""
        generation = job.generation
        is_prefilled = generation.prefill(self.pair, self.prefixes, lambda: self._should_preempt(job))
        if not is_prefilled and not job.request.cancelled():
            return True
        while step := generation.step(self.pair):
            self.totals.stats.add(step, step.draft_ms + step.verify_ms)
            if not job.on_step(step) or job.request.finish_reason:
                return False
            if self._should_preempt(job):
                return True
        return False

    def _should_preempt(self, job: EngineJob) -> bool:
        """Wait for urgent work of other pairs, then return whether this pair has a more urgent job."""
        if job.urgent:
            return False
        self._compute_lock.yield_to_urgent()
        return bool(self._urgent)

    def _requeue(self, job: EngineJob) -> bool:
        """Queue a preempted job; return False if it was cancelled meanwhile."""
        with self._changed:
            if job.cancelled_at is not None:
                return False
            self.running = None
            self._not_urgent.appendleft(job)
        self.totals.preempted += 1
        return True

    def _end(self, job: EngineJob, error: BaseException | None = None) -> None:
        totals, request = self.totals, job.request
        if job.cancelled_at is not None:
            request.finish_reason = request.finish_reason or "cancelled"
        with self._changed:
            totals.requests += 1
            totals.failed += int(error is not None)
            totals.cancelled += int(request.finish_reason == "cancelled")
            if request.stats.steps:
                totals.prompt_tokens += len(request.ids)
                totals.reused_tokens += request.cached_tokens
        job.on_end(error)

    def _jobs(self) -> list[EngineJob]:
        return [*self._urgent, *self._not_urgent, *([self.running] if self.running else [])]
