"""Decides which request has the pair: urgent ones first, and only the newest request of each document.

`submit` and `cancel` may be called from any thread; `run` is the engine thread. A job's callbacks are called on the
engine thread, except that the end of a job that never ran may come from whoever cancels it. Between two steps the
engine checks whether the job was cancelled or something more urgent waits; a job that gives way keeps its place at the
head of its class and continues from its KV cache (`PrefixCache`). Schedulers of several pairs
share a `ComputeLock`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from localdflash.base.errors import DeviceFailed, EngineGone, QueueFull
from localdflash.engine.compute_lock import ComputeLock
from localdflash.engine.generate import Generation, Request
from localdflash.engine.pair import Pair, Step
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.stats import Stats

OnStep = Callable[[Step], bool]  # False: this was the last step that is wanted
OnEnd = Callable[[BaseException | None], None]  # the error that ended the job, if one did


@dataclass(eq=False)
class Job:
    """A request, with callbacks for each step and for the end, which comes exactly once."""

    request: Request
    on_step: OnStep
    on_end: OnEnd
    urgent: bool = False  # a completion: goes before every job that is not
    document: str | None = None  # a newer job of the same document cancels this one
    submitted: float = field(default_factory=time.perf_counter)
    cancelled_at: float | None = None

    def __post_init__(self) -> None:
        given = self.request.cancelled
        self.request.cancelled = lambda: self.cancelled_at is not None or given()
        self.generation = Generation(self.request)


@dataclass
class EngineTotals:
    """What the engine did since it started."""

    stats: Stats = field(default_factory=Stats)
    requests: int = 0  # ended, for whatever reason
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0
    prompt_tokens: int = 0  # of requests that took a step
    reused_tokens: int = 0  # of them, what came out of a cache
    cancel_ms: deque[float] = field(default_factory=lambda: deque(maxlen=1000))  # newest: cancel to engine free

    def add(self, other: "EngineTotals") -> None:
        """Count what another engine did, too."""
        self.stats.merge(other.stats)
        for name in ("requests", "failed", "cancelled", "preempted", "prompt_tokens", "reused_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.cancel_ms.extend(list(other.cancel_ms))


class Scheduler:
    """The queue of jobs for one pair. `limit`: jobs that may wait."""

    def __init__(
        self, pair: Pair, prefixes: PrefixCache | None = None, limit: int = 64, compute_lock: ComputeLock | None = None
    ) -> None:
        self.pair, self.prefixes = pair, prefixes
        self.totals = EngineTotals()
        self.running: Job | None = None
        self._limit, self._compute_lock = limit, compute_lock or ComputeLock()
        self._urgent, self._patient = deque[Job](), deque[Job]()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def queue_length(self) -> int:
        """The number of jobs in the queue."""
        return len(self._urgent) + len(self._patient)

    @property
    def is_busy(self) -> bool:
        """Return whether a job runs or waits."""
        with self._changed:
            return bool(self._jobs())

    @property
    def is_answering(self) -> bool:
        """Return whether one of them is to write something: a prompt that is only read ahead is no answer."""
        with self._changed:
            return any(job.request.max_tokens for job in self._jobs())

    def submit(self, job: Job) -> None:
        """Queue a job; QueueFull if too many wait, EngineGone if the engine has stopped."""
        with self._changed:
            if self._closed:
                raise EngineGone("the engine has stopped: start it again")
            older = [other for other in self._jobs() if job.document and other.document == job.document]
            waited = [other for other in older if self._withdraw(other)]
            full = self.queue_length >= self._limit
            if not full:
                (self._urgent if job.urgent else self._patient).append(job)
                self._changed.notify()
        for other in waited:
            self._end(other, None)
        if full:
            raise QueueFull(f"{self._limit} requests are waiting, and no more may: try again in a moment")

    def cancel(self, job: Job) -> None:
        """Stop a job: within one step if it runs, at once if it waits. One that has ended is left alone."""
        with self._changed:
            waited = self._withdraw(job)
        if waited:
            self._end(job, None)

    def cancel_all(self) -> None:
        """Stop every job that is there; others may come."""
        with self._changed:
            jobs = self._jobs()
        for job in jobs:
            self.cancel(job)

    def _withdraw(self, job: Job) -> bool:
        """Mark a job as cancelled and take it out of the queue; return whether it was in it."""
        job.cancelled_at = job.cancelled_at or time.perf_counter()
        queue = self._urgent if job.urgent else self._patient
        if job not in queue:
            return False
        queue.remove(job)
        return True

    def run(self) -> None:
        """Work until `close`; this is the engine thread. DeviceFailed ends every job and is raised."""
        while (job := self._next()) is not None:
            self._work(job)

    def close(self) -> None:
        """Take no more jobs and cancel the queue; `run` returns after the step under way."""
        self._stop(None)

    def drain(self) -> None:
        """Take no more jobs; `run` returns when the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _stop(self, error: BaseException | None) -> None:
        with self._changed:
            self._closed = True
            waiting = [*self._urgent, *self._patient]
            for job in self._jobs():
                job.cancelled_at = job.cancelled_at or time.perf_counter()
            self._urgent.clear()
            self._patient.clear()
            self._changed.notify()
        for job in waiting:
            self._end(job, error)

    def _next(self) -> Job | None:
        """Wait for work: the oldest urgent job, else the oldest other one; None after `close`."""
        with self._changed:
            while True:
                if self._urgent or self._patient:
                    self.running = (self._urgent or self._patient).popleft()
                    return self.running
                if self._closed:
                    return None
                self._changed.wait()

    def _work(self, job: Job) -> None:
        """Run a job until it ends or gives way."""
        request = job.request
        error: Exception | None = None
        try:
            with self._compute_lock.taken(job.urgent):
                request.queue_ms = request.queue_ms or (time.perf_counter() - job.submitted) * 1e3
                gives_way = self._makes_room(job)
            if gives_way and self._put_back(job):
                return
        except Exception as caught:  # the request fails, the engine lives
            error = caught
        with self._changed:
            self.running = None
        if job.cancelled_at is not None:
            self.totals.cancel_ms.append((time.perf_counter() - job.cancelled_at) * 1e3)
        self._end(job, error)
        if isinstance(error, DeviceFailed):
            self._stop(error)
            raise error

    def _makes_room(self, job: Job) -> bool:
        """Step until the end (False), or until something more urgent waits (True)."""
        generation = job.generation
        taken = generation.take(self.pair, self.prefixes, lambda: self._gives_way(job))
        if not taken and not job.request.cancelled():
            return True
        while step := generation.step(self.pair):
            self.totals.stats.add(step, step.draft_ms + step.verify_ms)
            if not job.on_step(step) or job.request.finish_reason:
                return False
            if self._gives_way(job):
                return True
        return False

    def _gives_way(self, job: Job) -> bool:
        """Return whether this pair has something more urgent to do; urgent work of another pair is over by then."""
        if job.urgent:
            return False
        self._compute_lock.yield_to_urgent()
        return bool(self._urgent)

    def _put_back(self, job: Job) -> bool:
        """Queue a job that gave way; False if it was cancelled meanwhile."""
        with self._changed:
            if job.cancelled_at is not None:
                return False
            self.running = None
            self._patient.appendleft(job)
        self.totals.preempted += 1
        return True

    def _end(self, job: Job, error: BaseException | None) -> None:
        totals, request = self.totals, job.request
        if job.cancelled_at is not None:
            request.finish_reason = request.finish_reason or "cancelled"
        with self._changed:
            totals.requests += 1
            totals.failed += error is not None
            totals.cancelled += request.finish_reason == "cancelled"
            if request.stats.steps:
                totals.prompt_tokens += len(request.ids)
                totals.reused_tokens += max(len(request.ids) - 1 - request.computed_tokens, 0)  # without anchor
        job.on_end(error)

    def _jobs(self) -> list[Job]:
        return [*self._urgent, *self._patient, *([self.running] if self.running else [])]
