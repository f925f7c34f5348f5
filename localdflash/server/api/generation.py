"""Generate answers: an HTTP API makes a `GenerationRequest`, and formats the text that `pieces` yields."""

import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from localdflash.base.errors import EngineDisconnect
from localdflash.engine.generate import Request
from localdflash.engine.pair import Step
from localdflash.engine.sampling import Constraint, SampledToken
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.stats import Stats
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answer_stream import PromptProgress
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_responses import ApiError, bad
from localdflash.server.api.schemas import SamplingFields
from localdflash.server.worker import PairWorker
from localdflash.text.grammar import Grammars
from localdflash.text.stream import UNSOUND, AnswerText, Detokenizer, Ending, TextDecoder
from localdflash.text.tokenizer import Tokenizer

MakeConstraint = Callable[[], Constraint]  # called once per choice, because a constraint has state
NO_LIMIT = 2**31 - 1  # more tokens than any context holds
COUNTED_CONTEXTS = 2  # a prompt is tokenized up to this multiple of the context length
NEUTRAL: Mapping[str, tuple[str, float]] = {  # sampling parameter -> its sampler, and its value if that is off
    "temperature": ("temperature", 1.0),
    "top_k": ("top_k", 0),
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 0.0),
    "repetition_penalty": ("penalties", 1.0),
    "presence_penalty": ("penalties", 0.0),
    "frequency_penalty": ("penalties", 0.0),
}
LOWEST: Mapping[str, float] = {"top_k": 0, "top_p": 1e-6}  # of `SamplingParams`; requests may have lower values
OVERFLOW = "context_length_exceeded"  # error code: the prompt does not fit


@dataclass(frozen=True)
class GenerationRequest:
    """Engine requests for one HTTP request, one for each choice, and how their tokens become text."""

    loaded: LoadedPair
    requests: Sequence[Request]
    stops: tuple[str, ...] = ()  # strings that end an answer; they are not part of it
    is_exempt: Callable[[str], bool] | None = None  # which stop strings do not count, see `StopStrings`
    truncated: bool = False  # whether a part of the prompt did not fit and was left out
    urgent: bool = False  # whether the scheduler prefers it to other requests; True for completions
    document: str | None = None  # document id; a newer request with this id cancels the generation
    max_seconds: float = 0.0  # time limit of each choice after its first step; 0: none
    min_indent: int = 0  # the answer ends before a line (not the first) that is indented less
    ending: Callable[[], Ending] | None = None  # makes the `Ending` of one choice
    best: bool = False  # only the choice of the highest score is wanted: the others end once theirs is lower
    make_decoder: Callable[[Tokenizer], TextDecoder] = Detokenizer

    def new_decoder(self) -> TextDecoder:
        """Return a text decoder for one choice."""
        return self.make_decoder(self.loaded.tokenizer)


def params_of(
    body: SamplingFields, temperature: float, recommended: Mapping[str, float] | None = None
) -> SamplingParams:
    """Return the request's sampling parameters. Defaults: `recommended` by the model's makers, then `temperature`."""
    given = {name: value for name in NEUTRAL if (value := getattr(body, name)) is not None}
    if body.repeat_penalty is not None:
        given.setdefault("repetition_penalty", body.repeat_penalty)
    given |= {name: max(given[name], lowest) for name, lowest in LOWEST.items() if name in given}
    sampling: dict[str, Any] = {"temperature": temperature, **(recommended or {}), **given}
    samplers = {sampler for sampler, _ in NEUTRAL.values()}
    if body.samplers is not None and "infill" not in body.samplers:  # our own infilling replaces that sampler
        samplers &= {*body.samplers}
    if body.repeat_last_n == 0:
        samplers -= {"penalties"}
    sampling |= {name: value for name, (sampler, value) in NEUTRAL.items() if sampler not in samplers}
    return SamplingParams(
        **sampling,
        penalty_window=limit_of(body.repeat_last_n, default=SamplingParams.penalty_window),
        seed=None if body.seed == -1 else body.seed,
        logit_bias=tuple(dict(body.logit_bias or ()).items()),
    )


def limit_of(*given: int | None, default: int) -> int:
    """Return the first limit that is not None, else `default`. A negative limit means `NO_LIMIT`."""
    limit = next((limit for limit in given if limit is not None), default)
    return NO_LIMIT if limit < 0 else limit


def constraint_of(body: SamplingFields, grammars: Grammars, *more: tuple[str, MakeConstraint]) -> MakeConstraint | None:
    """Return the maker of the request's constraint, or None; ApiError for two. `more`: other makers by field name."""
    makers = list(more)
    if body.json_schema is not None:
        schema = body.json_schema
        makers.append(("json_schema", lambda: grammars.json_schema(schema)))
    if body.grammar:
        text = body.grammar
        makers.append(("grammar", lambda: grammars.gbnf(text)))
    if len(makers) > 1:
        names = " and ".join(name for name, _ in makers)
        raise ApiError(400, f"{names}: only one of these fields may be set", param=makers[0][0], code="invalid_value")
    return makers[0][1] if makers else None


def with_choices(
    generation: GenerationRequest,
    body: SamplingFields,
    count: int = 1,
    constraint: MakeConstraint | None = None,
    top_logprobs: int | None = None,
    *,
    param: str = "prompt",
) -> GenerationRequest:
    """Return the generation with `count` choices; choice i has the seed + i. ApiError if field `param` is too long."""
    request, tokenizer, context = generation.requests[0], generation.loaded.tokenizer, generation.loaded.context
    if body.stop == "":
        raise bad("stop", "an empty stop string would end every answer")
    stops = (*generation.stops, *([body.stop] if isinstance(body.stop, str) else body.stop or ()))
    if invalid := [token for token, _ in request.params.logit_bias if not 0 <= token < tokenizer.vocab_size]:
        raise bad("logit_bias", f"invalid token id {invalid[0]} (expected 0 to {tokenizer.vocab_size - 1})")
    free = context - len(request.ids)
    if free < min(request.max_tokens, 1):
        # Claude Code, pi and opencode look for the words before the semicolon, litellm for the words after it.
        counted = COUNTED_CONTEXTS * context
        size = f"more than {counted}" if len(request.ids) > counted else f"{len(request.ids)}"
        message = f"prompt is too long: {size} tokens > {context} maximum"
        message += f"; this model's maximum context length is {context} tokens"
        raise ApiError(400, message, param=param, code=OVERFLOW)
    seed = request.params.seed
    requests = [
        replace(
            request,
            max_tokens=min(request.max_tokens, free),
            # A special token decodes to no text, so its stop string becomes an end token.
            ends=request.ends.union(tokenizer.special(stop) for stop in stops if tokenizer.has_special(stop)),
            params=replace(
                request.params,
                seed=None if seed is None else (seed + i) % 2**63,
                penalty_window=min(request.params.penalty_window, context),
            ),
            constraint=constraint() if constraint else request.constraint,
            top_logprobs=top_logprobs,
            draft=body.draft is not False,
            stats=Stats(),
        )
        for i in range(count)
    ]
    return replace(generation, requests=requests, stops=stops, document=body.document)


@dataclass
class Choice:
    """Tokens and text of one answer so far, and the reason why it ended."""

    index: int
    request: Request
    ids: list[int] = field(default_factory=list)  # all committed tokens, even if their text was cut off
    text: str = ""
    chosen: list[SampledToken] = field(default_factory=list)  # tokens with log-probabilities, if requested
    score: float = 0.0  # see `AnswerText`
    finish: str = ""  # "stop", "length", "cancelled" or "unlikely"; empty while running
    stop_string: str = ""  # the stop string that ended the text, if any
    ending: Ending | None = None  # set at the end of the answer

    @property
    def is_sound(self) -> bool:
        """Return whether the answer has ended with text that fits the place."""
        is_unsound = self.ending is not None and self.ending.reason == UNSOUND
        return self.finish in ("stop", "length") and bool(self.text.strip()) and not is_unsound


@dataclass(frozen=True)
class ChoicePiece:
    """Text that one step added to a choice, or progress of its prefill. A choice's last piece only reports its end."""

    choice: Choice
    text: str = ""
    chosen: Sequence[SampledToken] = ()
    step: Step | None = None
    progress: PromptProgress | None = None
    is_last: bool = False  # whether the choice has ended; then the other fields are empty


async def pieces(
    state: AppState, generation: GenerationRequest, *, progress: bool = False
) -> AsyncGenerator[ChoicePiece]:
    """Run the choices in turn and yield their pieces. Closing the generator cancels the request within one step."""
    if generation.document:
        state.newest[generation.document] = generation
    if not (worker := state.engines.worker_of(generation.loaded)):
        raise ApiError(503, "the model was replaced; send the request again", code="model_changed", Retry_After="1")
    choices = [Choice(index, request) for index, request in enumerate(generation.requests)]
    best = -math.inf
    for choice in choices:
        if generation.document and state.newest.get(generation.document) is not generation:
            # This choice is outdated: to run it would cancel the newer request.
            yield ChoicePiece(replace(choice, finish="cancelled"), is_last=True)
            return
        async with aclosing(_choice_pieces(state, worker, generation, choice, progress, best)) as source:
            async for piece in source:
                yield piece
        if generation.best and choice.is_sound:
            best = max(best, choice.score)
        if choice.finish == "cancelled":
            return


async def _choice_pieces(
    state: AppState,
    worker: PairWorker,
    generation: GenerationRequest,
    choice: Choice,
    progress: bool,
    min_score: float,  # below it the choice ends
) -> AsyncGenerator[ChoicePiece]:
    """Run one choice and yield its pieces."""
    began, request = time.perf_counter(), choice.request
    tokens = _TokenBuffer(generation.new_decoder(), request.ends)
    lines = _IndentLimit(generation.min_indent)
    ending = generation.ending() if generation.ending else None
    answer_text = AnswerText(generation.new_decoder(), request.ends, generation.stops, ending, generation.is_exempt)
    answer = worker.stream(
        request,
        answer_text,
        urgent=generation.urgent,
        document=generation.document,
        seconds=generation.max_seconds,
        progress=progress,
    )
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            if delta.progress:
                yield ChoicePiece(choice, progress=delta.progress)
                continue
            if delta.step and not choice.ids:
                state.metrics.record_first_token(time.perf_counter() - began)
            choice.ids += delta.step.tokens if delta.step else ()
            text = lines.push(delta.text)
            chosen = tokens.push(delta.chosen, text)
            choice.text += text
            choice.chosen += chosen
            choice.score = answer_text.score
            yield ChoicePiece(choice, text, chosen, delta.step)
            if lines.ended:
                break
            if choice.score < min_score:
                choice.finish = "unlikely"
                yield ChoicePiece(choice, is_last=True)
                return
    if request.finish_reason == "cancelled" and not (lines.ended or generation.document):
        if worker.is_evicting:
            message = f"{worker.display_name} was unloaded for another chat's model"
            raise ApiError(503, message, code="model_taken", Retry_After="1")
        raise EngineDisconnect("the engine is stopping; send the request again")  # the scheduler was closed
    rest = lines.finish()
    choice.text += rest
    reason = {"context": "length", "": "cancelled"}.get(request.finish_reason, request.finish_reason)
    choice.finish = "stop" if lines.ended else reason
    choice.ending = ending
    choice.stop_string = "" if lines.ended else answer_text.stop_string or _stop_marker(choice, generation)
    remaining = [] if lines.ended or answer_text.stopped else tokens.finish()
    choice.chosen += remaining
    if rest or remaining:
        yield ChoicePiece(choice, rest, remaining)
    yield ChoicePiece(choice, is_last=True)


async def collect(state: AppState, generation: GenerationRequest) -> list[Choice]:
    """Run all choices to their end and return them."""
    async with aclosing(pieces(state, generation)) as source:
        choices = {piece.choice.index: piece.choice async for piece in source}
    return list(choices.values())


def _stop_marker(choice: Choice, generation: GenerationRequest) -> str:
    """Return the stop string whose special token ended the answer; "" if none did, or if the model ends with it."""
    tokenizer = generation.loaded.tokenizer
    last = choice.ids[-1] if choice.ids else None
    markers = (stop for stop in generation.stops if tokenizer.specials.get(stop, -1) == last)
    return "" if last in tokenizer.ends else next(markers, "")


class _TokenBuffer:
    """Buffer of tokens with log-probabilities. It releases a token once the sent text has its first byte."""

    def __init__(self, decoder: TextDecoder, ends: frozenset[int]) -> None:
        self._decoder, self._ends = decoder, ends
        self._waiting: list[SampledToken] = []
        self._sent_bytes = self._decoded_bytes = 0

    def push(self, chosen: Sequence[SampledToken], text: str) -> list[SampledToken]:
        """Add tokens and the text sent with them; return all tokens whose first byte is in the text sent so far."""
        self._waiting += (one for one in chosen if one.token not in self._ends)
        self._sent_bytes += len(text.encode())
        released = []
        while self._waiting and self._decoded_bytes < self._sent_bytes:
            released.append(one := self._waiting.pop(0))
            self._decoded_bytes += len(self._decoder.push([one.token]).encode())
        return released

    def finish(self) -> list[SampledToken]:
        """Return the tokens not released yet; they belong to the answer unless its text was cut."""
        return self._waiting


class _IndentLimit:
    """Filter that ends text before a line (not the first) that is indented less than `min_indent`; 0: no limit."""

    def __init__(self, min_indent: int) -> None:
        self.ended = False
        self._min_indent, self._held = min_indent, ""

    def push(self, text: str) -> str:
        """Return the text within the limit; hold back a line break and the blanks after it until code follows."""
        if not self._min_indent or self.ended:
            return text
        lines = (self._held + text).split("\n")
        for number, line in enumerate(lines[1:], 1):
            code = line.lstrip(" \t")
            if code and len(line) - len(code) < self._min_indent:
                self.ended, self._held = True, ""
                return "\n".join(lines[:number])
        starts_a_line = len(lines) > 1 and not lines[-1].strip(" \t")
        self._held = "\n" + lines.pop() if starts_a_line else ""
        return "\n".join(lines)

    def finish(self) -> str:
        """Return the held-back text at the end of the answer."""
        return self._held


def timings(requests: Sequence[Request]) -> dict[str, Any]:
    """Return token counts, times and rates summed over requests, under llama-server's names, and some of our own."""
    stats = Stats()
    for request in requests:
        stats.merge(request.stats)
    cached, prompt_ms = sum(r.cached_tokens for r in requests), sum(r.prefill_ms for r in requests)
    prompt = sum(len(r.ids) for r in requests) - cached
    return {
        "queue_ms": round(sum(request.queue_ms for request in requests), 3),
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _ratio(prompt_ms, prompt),
        "prompt_per_second": _ratio(prompt * 1e3, prompt_ms),
        "predicted_n": stats.tokens,
        "predicted_ms": round(stats.total_ms, 3),
        "predicted_per_token_ms": _ratio(stats.total_ms, stats.tokens),
        "predicted_per_second": _ratio(stats.tokens * 1e3, stats.total_ms),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "steps": stats.steps,
        "tau": round(stats.tau, 3),
        "accept_by_slot": stats.acceptance(),
        "steps_by_drafter": stats.steps_by_drafter,
    }


def _ratio(a: float, b: float) -> float:
    return round(a / b, 3) if b else 0.0
