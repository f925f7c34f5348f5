"""Answer in progress: the text of a request, from the engine thread to the event loop of its reader."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from localdflash.base.errors import LocaldflashError
from localdflash.code.fim.choices import continue_past_end
from localdflash.engine.generate import Request
from localdflash.engine.pair import Step
from localdflash.engine.sampling import SampledToken
from localdflash.engine.scheduler import EngineJob, Scheduler
from localdflash.text.stream import AnswerText

PROGRESS_SECONDS = 0.25  # shortest time between two reports of a prefill's progress


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Progress of a prefill, with llama-server's names: tokens of the prompt, cached tokens, tokens read so far."""

    total: int
    cache: int
    processed: int  # includes `cache`
    time_ms: int  # since the prefill began


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text added by one decoding step. It is "" for part of a character, or a possible start of a stop string."""

    text: str
    step: Step | None  # None: held-back text at the end of the answer, or progress of the prefill
    chosen: Sequence[SampledToken] = ()  # one per token of the step if logprobs are requested, else empty
    progress: PromptProgress | None = None


@dataclass
class AnswerStream:
    """Request in progress, and its text for one event loop. To continue past an end token, it submits a second job."""

    request: Request
    text: AnswerText
    vocab_size: int
    scheduler: Scheduler
    observe: Callable[[Step], None]  # called after each step, on the engine thread
    urgent: bool  # a completion, which the scheduler prefers to chat answers
    seconds: float  # time limit after the first step, then finish reason "length"; 0: none
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _deltas: asyncio.Queue[TextDelta | BaseException | None] = field(default_factory=asyncio.Queue)
    _abandoned: threading.Event = field(default_factory=threading.Event)  # set when the reader has closed the stream
    _deadline: float = 0.0
    _progress: PromptProgress | None = None  # last report
    _prefill_began: float = 0.0

    async def run(self, document: str | None) -> AsyncGenerator[TextDelta]:
        """Yield text deltas. Closing the generator cancels the request within one step. QueueFull if too many wait."""
        self._submit(self.request, document)
        try:
            while delta := await self._deltas.get():
                if isinstance(delta, BaseException):
                    raise delta
                yield delta
        finally:
            self._abandoned.set()
            self.scheduler.cancel(self._job)

    def _submit(self, request: Request, document: str | None = None) -> None:
        self._job = EngineJob(request, self._on_step, self._on_end, self.urgent, document)
        self.scheduler.submit(self._job)

    def report_prefill(self, computed: int) -> None:
        """Send the progress of the prefill, at most once in `PROGRESS_SECONDS`, and at its end."""
        now, total, last = time.perf_counter(), len(self.request.ids), self._progress
        self._prefill_began = self._prefill_began or now
        ms = round((now - self._prefill_began) * 1e3)
        if last and computed < total and ms - last.time_ms < PROGRESS_SECONDS * 1e3:
            return
        self._progress = PromptProgress(total, last.cache if last else min(computed, total - 1), computed, ms)
        self._send(TextDelta("", None, progress=self._progress))

    def _on_step(self, step: Step) -> bool:
        self._deadline = self._deadline or (time.perf_counter() + self.seconds)
        job, text = self._job, self.text
        chosen, job.generation.sampler.sampled_tokens = job.generation.sampler.sampled_tokens, []
        self.observe(step)
        self._send(TextDelta(text.push(step.tokens, [one.logprob for one in chosen]), step, chosen))
        if text.stopped:
            job.request.finish_reason = "stop"
        elif self.seconds and time.perf_counter() > self._deadline:
            job.request.finish_reason = "length"
        return not job.request.finish_reason

    def _on_end(self, error: BaseException | None) -> None:
        if error is None and self._job.request.finish_reason == "stop" and self._continue_past_end():
            return
        self.request.finish_reason = self._job.request.finish_reason
        if rest := self.text.finish():
            self._send(TextDelta(rest, None))
        self._send(error)

    def _continue_past_end(self) -> bool:
        """If the text continues past the model's end token, submit a job for that; return whether one was submitted."""
        if self._abandoned.is_set() or not self.text.resumes():
            return False
        finished = self._job
        try:  # without a document: the new job must not cancel a newer request of the same document
            self._submit(continue_past_end(finished.request, finished.generation.ids, self.vocab_size))
        except LocaldflashError:  # the queue is full
            self._job = finished
            return False
        self._job.document = finished.document
        if self._abandoned.is_set():
            self.scheduler.cancel(self._job)
        return True

    def _send(self, delta: TextDelta | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads the stream
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, delta)
