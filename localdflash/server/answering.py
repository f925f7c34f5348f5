"""Bridge between the engine thread and the event loop: decoding steps of a request become text deltas."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from localdflash.base.errors import LocaldflashError
from localdflash.code.fim.choices import continue_past_end
from localdflash.engine.generate import Request
from localdflash.engine.pair import Step
from localdflash.engine.sampling import SampledToken
from localdflash.engine.scheduler import EngineJob, Scheduler
from localdflash.text.stream import AnswerText


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text added by one decoding step; empty for a partial character or a possible start of a stop string."""

    text: str
    step: Step | None  # None: only text that was held back until the end
    chosen: Sequence[SampledToken] = ()  # one for each token of the step, where the request asks for probabilities


class Answering:
    """Request in progress; belongs to one event loop.

    `request` holds the statistics afterwards. An answer that continues past an end token of the model is a new job of
    the scheduler. `seconds` limits the time after the first step (0: no limit); an answer that reaches the limit
    finishes with "length".
    """

    def __init__(
        self,
        request: Request,
        text: AnswerText,
        vocab_size: int,
        scheduler: Scheduler,
        observe: Callable[[Step], None],
        urgent: bool,
        seconds: float,
    ) -> None:
        self._request, self._text, self._vocab_size = request, text, vocab_size
        self._scheduler, self._observe, self._urgent, self._seconds = scheduler, observe, urgent, seconds
        self._loop, self._deltas = asyncio.get_running_loop(), asyncio.Queue[TextDelta | BaseException | None]()
        self._deadline, self._left = 0.0, threading.Event()  # set when nobody reads any more

    async def run(self, document: str | None) -> AsyncGenerator[TextDelta]:
        """Yield text deltas; closing the generator ends the request. Raise LocaldflashError if the queue is full."""
        self._submit(self._request, document)
        try:
            while delta := await self._deltas.get():
                if isinstance(delta, BaseException):
                    raise delta
                yield delta
        finally:
            self._left.set()
            self._scheduler.cancel(self._job)

    def _submit(self, request: Request, document: str | None = None) -> None:
        self._job = EngineJob(request, self._on_step, self._on_end, self._urgent, document)
        self._scheduler.submit(self._job)

    def _on_step(self, step: Step) -> bool:
        self._deadline = self._deadline or (time.perf_counter() + self._seconds)
        job, text = self._job, self._text
        chosen, job.generation.sampler.sampled_tokens = job.generation.sampler.sampled_tokens, []
        self._observe(step)
        self._tell(TextDelta(text.push(step.tokens, [one.logprob for one in chosen]), step, chosen))
        if text.stopped:
            job.request.finish_reason = "stop"
        elif self._seconds and time.perf_counter() > self._deadline:
            job.request.finish_reason = "length"
        return not job.request.finish_reason

    def _on_end(self, error: BaseException | None) -> None:
        if error is None and self._job.request.finish_reason == "stop" and self._goes_on():
            return
        self._request.finish_reason = self._job.request.finish_reason
        if rest := self._text.finish():
            self._tell(TextDelta(rest, None))
        self._tell(error)

    def _goes_on(self) -> bool:
        """Return whether the answer continues past the model's end token."""
        if self._left.is_set() or not self._text.resumes():
            return False
        ended = self._job
        try:  # of no document: it must not end a newer request of it
            self._submit(continue_past_end(ended.request, ended.generation.ids, self._vocab_size))
        except LocaldflashError:  # too many wait
            self._job = ended
            return False
        if self._left.is_set():
            self._scheduler.cancel(self._job)
        return True

    def _tell(self, delta: TextDelta | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, delta)
