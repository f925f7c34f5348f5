"""Decode the server-sent events of a chat answer, and collect their text, verify steps and statistics."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from localdflash.base.errors import LocaldflashError
from localdflash.chat.messages import Finish, StepRecord
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.server.refusals import error_of_body, error_of_response
from localdflash.text.thoughts import ThoughtWriter

MIN_RATE_SECONDS = 0.05  # shorter answers, from a cache or a buffering proxy, get no rate
NO_DRAFTER = ("", "none")  # drafter names of a step without a draft


class ChunkStep(Struct):
    """Verify step that produced the tokens of an event. `sizes`: number of UTF-8 bytes of each token."""

    drafter: str
    drafted: int
    accepted: int
    sizes: list[int]
    ms: float


class ChunkTimings(Struct):
    """Timings of an answer. llama-server reports the fields above `steps`, too."""

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
    accept_by_slot: list[float] | None = None  # share of accepted tokens by draft position
    steps_by_drafter: dict[str, int] | None = None


class Usage(Struct):
    """Token counts, as OpenAI reports them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None


class VllmAcceptance(Struct):
    """Acceptance of an answer, which vLLM 0.29 and newer report with `--per-request-spec-decode-metrics summary`."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float


class ChunkDelta(Struct):
    """Text added to a choice. Some servers send thoughts separately, under one of two names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChunkChoice(Struct):
    """Choice of an answer. The chat requests one choice only."""

    delta: ChunkDelta = field(default_factory=ChunkDelta)
    finish_reason: str | None = None


class Chunk(Struct):
    """Event of a streamed answer."""

    choices: list[ChunkChoice] = field(default_factory=list)
    model: str | None = None
    step: ChunkStep | None = None
    timings: ChunkTimings | None = None
    usage: Usage | None = None
    metrics: Any = None
    error: Any | UnsetType = UNSET


_chunks = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Decode an event; raise the error that it reports, or LocaldflashError if it is malformed."""
    try:
        chunk = _chunks.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise error_of_response(data, 200) from None
    if chunk.error is not UNSET:
        raise error_of_body({"error": chunk.error}, 500)
    step = chunk.step
    if step and not (0 <= step.accepted <= min(step.drafted, len(step.sizes)) and min(step.sizes, default=0) >= 0):
        raise LocaldflashError("the server reported an inconsistent step; is it another version?")
    return chunk


AnswerPart = tuple[str, StepRecord | None]  # added text, and the verify step that added it


class Replay:
    """Filter that keeps a repeated answer from being shown twice; `text` is the text shown so far."""

    def __init__(self) -> None:
        self.text = ""
        self._repeated: list[AnswerPart] | None = None  # parts of the repeated answer, while they match `text`
        self._length = 0  # characters of these parts

    def begin_again(self) -> None:
        """Prepare for the answer to be sent again from its start."""
        self._repeated, self._length = [] if self.text else None, 0

    def push(self, text: str, step: StepRecord | None) -> tuple[bool, list[AnswerPart]]:
        """Return whether to discard the shown text, because the repeated answer differs, and the parts to show now."""
        if self._repeated is None:
            self.text += text
            return False, [(text, step)]
        self._repeated.append((text, step))
        expected, self._length = self.text[self._length :], self._length + len(text)
        if expected.startswith(text):
            if self._length == len(self.text):
                self._repeated = None
            return False, []
        if text.startswith(expected):
            self._repeated, new = None, text[len(expected) :]
            self.text += new
            return False, [(new, step and _last_tokens(step, len(new.encode("utf-8", "replace"))))]
        return True, self._restart()

    def finish(self) -> tuple[bool, list[AnswerPart]]:
        """End the answer and return what `push` returns; a repeated answer that is shorter differs, too."""
        return (True, self._restart()) if self._repeated is not None else (False, [])

    def _restart(self) -> list[AnswerPart]:
        parts, self._repeated = self._repeated or [], None
        self.text = "".join(text for text, _ in parts)
        return parts


class AnswerReader:
    """Collector of the events of one answer. `requested_at`: time of the request, from `time.perf_counter`."""

    def __init__(self, settings: ChatSettings, requested_at: float) -> None:
        self.model, self.replay = "", Replay()
        self._settings, self._requested_at = settings, requested_at
        self._reason = ""
        self._ttft_ms: float | None = None
        self.begin_again()

    def begin_again(self) -> None:
        """Reset the statistics, because the answer is requested again."""
        self.replay.begin_again()
        self._writer = ThoughtWriter()
        self._first = self._last = 0.0  # time of the first and the last text
        self._timings: ChunkTimings | None = None
        self._usage: Usage | None = None
        self._vllm: VllmAcceptance | None = None

    def add_chunk(self, chunk: Chunk) -> tuple[bool, list[AnswerPart]]:
        """Add an event; return whether to discard the shown text, and the parts to show now; see `Replay.push`."""
        self.model = chunk.model or self.model
        self._timings, self._usage = chunk.timings or self._timings, chunk.usage or self._usage
        self._vllm = _vllm_acceptance(chunk.metrics) or self._vllm
        choice = chunk.choices[0] if chunk.choices else ChunkChoice()
        self._reason = choice.finish_reason or self._reason
        text = self._writer.add_thought(choice.delta.reasoning_content or choice.delta.reasoning or "")
        text += self._writer.add_answer(choice.delta.content) if choice.delta.content else ""
        if text:
            self._last = time.perf_counter()
            self._first = self._first or self._last
            self._ttft_ms = self._ttft_ms or round((self._last - self._requested_at) * 1e3, 1)
        step = None
        if chunk.step:
            drafter = "" if chunk.step.drafter in NO_DRAFTER else chunk.step.drafter
            step = StepRecord(drafter, chunk.step.drafted, chunk.step.accepted, tuple(chunk.step.sizes), chunk.step.ms)
        return self.replay.push(text, step) if text or step else (False, [])

    def finish(self, *, is_localdflash: bool) -> Finish:
        """Return why the answer ended; "context" for a full context, which localdflash's server reports as "length"."""
        if self._reason == "length":
            max_tokens = self._settings.max_tokens or 0
            tokens = _answer_numbers(self._timings, self._usage).get("tokens", 0)
            return "context" if is_localdflash and not 0 < max_tokens <= tokens else "length"
        known: dict[str, Finish] = {"cancelled": "cancelled", "repeat": "repeat"}
        return known.get(self._reason, "stop")

    def numbers(self, *, is_localdflash: bool) -> dict[str, Any]:
        """Return the statistics of the answer, for `Message.numbers`."""
        numbers = _answer_numbers(self._timings, self._usage)
        if vllm := self._vllm:
            numbers |= {"steps": vllm.num_spec_steps, "tau": round(vllm.mean_acceptance_length, 3)}
            numbers |= {"drafted": vllm.num_draft_tokens, "accepted": vllm.num_accepted_draft_tokens}
        tokens, seconds = numbers.get("tokens", 0), self._last - self._first  # without prefill
        if not numbers.get("tokens_per_second") and tokens > 1 and seconds >= MIN_RATE_SECONDS:
            numbers["tokens_per_second"] = round((tokens - 1) / seconds, 1)
        if self._ttft_ms is not None:
            numbers["ttft_ms"] = self._ttft_ms
        if self.model:
            numbers["model"] = self.model
        if is_localdflash:
            numbers["draft"] = self._settings.draft
        return numbers


def _vllm_acceptance(metrics: Any) -> VllmAcceptance | None:
    """Return vLLM's acceptance in the metrics of an event; None if they hold none, as those of other servers."""
    if not isinstance(metrics, dict):
        return None
    try:
        return msgspec.convert(metrics.get("speculative_decoding"), VllmAcceptance)
    except msgspec.ValidationError:
        return None


def _answer_numbers(timings: ChunkTimings | None, usage: Usage | None) -> dict[str, Any]:
    """Return the statistics that the server reported; `timings` take precedence over `usage`."""
    numbers: dict[str, Any] = {}
    if usage:
        cached = (usage.prompt_tokens_details or {}).get("cached_tokens")
        numbers = {"tokens": usage.completion_tokens, "prompt_tokens": usage.prompt_tokens, "cached_tokens": cached}
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
    """Merge the names of `NO_DRAFTER` into "", as in `StepRecord`."""
    if steps is None:
        return None
    merged = Counter[str]()
    for drafter, count in steps.items():
        merged["" if drafter in NO_DRAFTER else drafter] += count
    return dict(merged)


def _last_tokens(step: StepRecord, size: int) -> StepRecord:
    """Return the step without its first tokens: the rest has `size` bytes of text, and may start within a token."""
    sizes: list[int] = []
    for token in reversed(step.sizes):
        if size <= 0:
            break
        sizes.insert(0, min(token, size))
        size -= token
    before = len(step.sizes) - len(sizes)
    accepted = max(step.accepted - before, 0)
    return StepRecord(step.drafter, max(step.drafted - before, accepted), accepted, tuple(sizes), step.ms)
