"""Read the events of a streamed answer."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from localdflash.base.errors import LocaldflashError
from localdflash.chat.messages import Finish, StepRecord
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.server.refusals import error_of, refusal
from localdflash.text.thoughts import ThoughtWriter

MIN_PACE_SECONDS = 0.05  # shorter answers, as from a cache or a buffering proxy, have no rate
NO_DRAFTER = ("", "none")  # names of a step without a draft


class ChunkStep(Struct):
    """Step that produced the tokens of an event."""

    drafter: str
    drafted: int
    accepted: int
    sizes: list[int]
    ms: float

    def record(self) -> StepRecord:
        """Return the step as a message stores it."""
        drafter = "" if self.drafter in NO_DRAFTER else self.drafter
        return StepRecord(drafter, self.drafted, self.accepted, tuple(self.sizes), self.ms)


class ChunkTimings(Struct):
    """Timings of an answer. llama-server reports the first fields too."""

    prompt_n: int = 0
    cache_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    predicted_per_second: float = 0.0
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    steps: int | None = None
    tau: float | None = None
    accept_by_slot: list[float] | None = None
    steps_by_drafter: dict[str, int] | None = None


class PromptDetails(Struct):
    """Details of the prompt's token count."""

    cached_tokens: int | None = None


class Usage(Struct):
    """Token counts, as OpenAI reports them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class ChunkDelta(Struct):
    """Text added to a choice. Some servers send thoughts separately, under one of two names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChunkChoice(Struct):
    """Choice of an answer; the chat requests one."""

    delta: ChunkDelta = field(default_factory=ChunkDelta)
    finish_reason: str | None = None


class Chunk(Struct):
    """Event of a streamed answer."""

    choices: list[ChunkChoice] = field(default_factory=list)
    model: str | None = None
    step: ChunkStep | None = None
    timings: ChunkTimings | None = None
    usage: Usage | None = None
    error: Any | UnsetType = UNSET


_chunks = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Decode an event.

    Raises the error that the event reports; LocaldflashError if the event is malformed.
    """
    try:
        chunk = _chunks.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise refusal(data, 200) from None
    if chunk.error is not UNSET:
        raise error_of({"error": chunk.error}, 500)
    if chunk.step and not _is_consistent(chunk.step):
        raise LocaldflashError("the server reported an inconsistent step; is it another version?")
    return chunk


def _is_consistent(step: ChunkStep) -> bool:
    return 0 <= step.accepted <= min(step.drafted, len(step.sizes)) and min(step.sizes, default=0) >= 0


class ArrivalRate:
    """Rate at which an answer arrived by the client's clock, for servers that report none.

    The time starts with the first text: the time before it belongs to the prompt.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first: float | None = None
        self._last = 0.0

    def arrived(self) -> None:
        """Record that text arrived."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last

    def of(self, tokens: int) -> float | None:
        """Return tokens per second for `tokens` in all, without the first; None if too little is known."""
        if self._first is None or tokens < 2 or self._last - self._first < MIN_PACE_SECONDS:
            return None
        return (tokens - 1) / (self._last - self._first)


class AnswerReader:
    """State of an answer, requested at `asked`, as far as its events have arrived."""

    def __init__(self, settings: ChatSettings, asked: float) -> None:
        self.model = ""
        self._settings, self._asked = settings, asked
        self._reason = ""
        self._ttft_ms: float | None = None
        self.begin_again()

    def begin_again(self) -> None:
        """Reset, because the answer is requested again."""
        self._writer, self._pace = ThoughtWriter(), ArrivalRate()
        self._timings: ChunkTimings | None = None
        self._usage: Usage | None = None

    def take(self, chunk: Chunk) -> tuple[str, StepRecord | None] | None:
        """Return the text and step that an event adds, if any."""
        self.model = chunk.model or self.model
        self._timings, self._usage = chunk.timings or self._timings, chunk.usage or self._usage
        choice = chunk.choices[0] if chunk.choices else ChunkChoice()
        self._reason = choice.finish_reason or self._reason
        text = self._text(choice.delta)
        if text:
            self._pace.arrived()
        if text and self._ttft_ms is None:
            self._ttft_ms = round((time.perf_counter() - self._asked) * 1e3, 1)
        return (text, chunk.step.record() if chunk.step else None) if text or chunk.step else None

    def _text(self, delta: ChunkDelta) -> str:
        """Return the text of an event; separate thoughts are written before the answer, in the format of `thoughts`."""
        thought = self._writer.add_thought(delta.reasoning_content or delta.reasoning or "")
        return thought + (self._writer.add_answer(delta.content) if delta.content else "")

    def finish(self, *, ours: bool) -> Finish:
        """Return why the answer ended. The daemon calls the end of the context "length" too."""
        if self._reason == "length":
            most = self._settings.max_tokens or 0
            tokens = answer_numbers(self._timings, self._usage).get("tokens", 0)
            return "context" if ours and not 0 < most <= tokens else "length"
        match self._reason:
            case "cancelled" | "repeat" as reason:
                return reason
            case _:
                return "stop"

    def numbers(self, *, ours: bool) -> dict[str, Any]:
        """See `Message.numbers`."""
        numbers = answer_numbers(self._timings, self._usage)
        if not numbers.get("tokens_per_second") and (rate := self._pace.of(numbers.get("tokens", 0))):
            numbers["tokens_per_second"] = round(rate, 1)
        if self._ttft_ms is not None:
            numbers["ttft_ms"] = self._ttft_ms
        if self.model:
            numbers["model"] = self.model
        if ours:
            numbers["draft"] = self._settings.draft
        return numbers


def answer_numbers(timings: ChunkTimings | None, usage: Usage | None) -> dict[str, Any]:
    """Return the statistics that the server reports."""
    numbers: dict[str, Any] = {}
    if usage:
        details = usage.prompt_tokens_details
        numbers = {
            "tokens": usage.completion_tokens,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": details.cached_tokens if details else None,
        }
    if timings:
        numbers |= {
            "tokens": timings.predicted_n,
            "prompt_tokens": timings.cache_n + timings.prompt_n,
            "cached_tokens": timings.cache_n,
            "steps": timings.steps,
            "tau": timings.tau,
            "drafted": timings.draft_n,
            "accepted": timings.draft_n_accepted,
            "accept_by_slot": timings.accept_by_slot,
            "steps_by_drafter": _merge_drafters(timings.steps_by_drafter),
            "tokens_per_second": round(timings.predicted_per_second, 1),
            "prompt_ms": timings.prompt_ms,
            "answer_ms": timings.predicted_ms,
        }
    return {name: value for name, value in numbers.items() if value is not None}


def _merge_drafters(steps: Mapping[str, int] | None) -> dict[str, int] | None:
    """Merge the names for no drafter, so that they match `StepRecord`."""
    if steps is None:
        return None
    merged: dict[str, int] = {}
    for drafter, count in steps.items():
        name = "" if drafter in NO_DRAFTER else drafter
        merged[name] = merged.get(name, 0) + count
    return merged
