"""Serve OpenAI's /v1/chat/completions and /v1/completions, token counts and /apply-template; refuse embeddings."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.engine.pair import Step
from localdflash.engine.sampling import SampledToken
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_request import count_prompt, prepare_chat, prompt_of
from localdflash.server.api.completion_request import prepare_prompt, prompts_of
from localdflash.server.api.content_blocks import AnswerParts, PartsDelta
from localdflash.server.api.generation import (
    Choice,
    ChoicePiece,
    GenerationRequest,
    collect,
    constraint_of,
    limit_of,
    pieces,
    timings,
    with_choices,
)
from localdflash.server.api.http_responses import DONE, ApiError, EventStream, json_of, json_response
from localdflash.server.api.schemas import ChatRequest, CompletionRequest, OpenAIFields, TemplateRequest
from localdflash.text.grammar import Grammars
from localdflash.text.stream import Detokenizer, TextDecoder
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallDelta

MIN_LOGPROB = -9999.0  # OpenAI's value for a token of probability 0
DEFAULT_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_CHOICES = 16  # limit for one request, over all prompts
NO_EMBEDDINGS = (
    "embeddings and reranking are not supported: the hidden states of generative models separate texts badly;"
    " use a server with an embedding model"
)


class ChatMessageBuilder:
    """Builder of one choice's chat message from the generated text, piece by piece."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self.calls: list[dict[str, Any]] = []  # tool calls, with the arguments so far

    def push(self, text: str) -> dict[str, Any]:
        """Return the delta that a piece of text adds; the delta may have no fields."""
        return self._delta(self._parts.push(text))

    def finish(self) -> dict[str, Any]:
        """Return the delta of text that was held back until the end."""
        return self._delta(self._parts.finish())

    def message(self, text: str) -> dict[str, Any]:
        """Return the whole message of a complete text."""
        parts = [self.push(text), self.finish()]
        content = "".join(part.get("content", "") for part in parts)
        thoughts = "".join(part.get("reasoning_content", "") for part in parts)
        return {
            "role": "assistant",
            "content": content or (None if self.calls else ""),
            "refusal": None,
            **({"reasoning_content": thoughts} if thoughts else {}),
            **({"tool_calls": self.calls} if self.calls else {}),
        }

    def _delta(self, added: PartsDelta) -> dict[str, Any]:
        calls = [self._call(call) for call in added.calls]
        delta = {"reasoning_content": added.thoughts, "content": added.text, "tool_calls": calls}
        return {name: part for name, part in delta.items() if part}

    def _call(self, delta: CallDelta) -> dict[str, Any]:
        if delta.index < len(self.calls):
            self.calls[delta.index]["function"]["arguments"] += delta.arguments
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        function = {"name": delta.name, "arguments": delta.arguments}
        call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
        self.calls.append({**call, "function": dict(function)})
        return {"index": delta.index, **call}


@dataclass(frozen=True)
class ChatChoices:
    """Builder of the field `choices` of /v1/chat/completions. `make_parts` makes an `AnswerParts` for one choice."""

    tokenizer: Tokenizer
    logprobs: bool
    make_parts: Callable[[], AnswerParts]
    _messages: dict[int, ChatMessageBuilder] = field(default_factory=dict)  # of the streamed choices, by index
    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"  # id prefix, `object` fields

    def first(self, index: int) -> list[dict[str, Any]]:
        """Return the `choices` entries that a stream sends before the text of a choice."""
        self._messages[index] = ChatMessageBuilder(self.make_parts())
        return [self._delta(index, {"role": "assistant", "content": ""})]

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """Return the `choices` entry of a piece of text in a stream."""
        index = piece.choice.index
        entry = self._delta(index, self._messages[index].push(piece.text) or {"content": ""})
        return {**entry, "logprobs": self._logprobs(piece.chosen)}

    def last(self, choice: Choice) -> list[dict[str, Any]]:
        """Return the last `choices` entries of a choice: any held-back text, then the finish reason."""
        message = self._messages[choice.index]
        rest = [self._delta(choice.index, delta) for delta in (message.finish(),) if delta]
        return [*rest, {**self._delta(choice.index, {}), "finish_reason": _reason(choice, message)}]

    def choice(self, choice: Choice) -> dict[str, Any]:
        """Return the `choices` entry of a response that is not streamed."""
        message = ChatMessageBuilder(self.make_parts())
        return {
            "index": choice.index,
            "message": message.message(choice.text),
            "logprobs": self._logprobs(choice.chosen),
            "finish_reason": _reason(choice, message),
        }

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, chosen: Sequence[SampledToken]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = [
            {
                **self._token(one.token, one.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in one.top_logprobs],
            }
            for one in chosen
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.piece(token, special=True)
        return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(data)}


@dataclass(frozen=True)
class CompletionChoices:
    """Builder of the field `choices` of /v1/completions. Choice i of prompt p has the index p * n + i."""

    tokenizer: Tokenizer
    logprobs: bool
    _decoders: dict[int, Detokenizer] = field(default_factory=dict)  # by index of the choice
    _offsets: dict[int, int] = field(default_factory=dict)  # next `text_offset` by index of the choice
    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def first(self, index: int) -> list[dict[str, Any]]:
        """See `ChatChoices`."""
        return []

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """See `ChatChoices`."""
        return self._choice(piece.choice, piece.text, piece.chosen, finish=None)

    def last(self, choice: Choice) -> list[dict[str, Any]]:
        """See `ChatChoices`."""
        return [self._choice(choice, text="", chosen=(), finish=choice.finish)]

    def choice(self, choice: Choice) -> dict[str, Any]:
        """See `ChatChoices`."""
        return self._choice(choice, choice.text, choice.chosen, choice.finish)

    def _choice(self, choice: Choice, text: str, chosen: Sequence[SampledToken], finish: str | None) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice.index, chosen) if self.logprobs else None,
            "finish_reason": finish,
        }

    def _logprobs(self, index: int, chosen: Sequence[SampledToken]) -> dict[str, Any]:
        offsets, decoder = [], self._decoders.setdefault(index, Detokenizer(self.tokenizer))
        for one in chosen:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(decoder.push([one.token]))
        return {
            "tokens": [self._token_text(one.token) for one in chosen],
            "token_logprobs": [max(one.logprob, MIN_LOGPROB) for one in chosen],
            "top_logprobs": [
                {self._token_text(token): max(logprob, MIN_LOGPROB) for token, logprob in one.top_logprobs}
                for one in chosen
            ],
            "text_offset": offsets,
        }

    def _token_text(self, token: int) -> str:
        r"""Return the text of a token; invalid UTF-8 in the notation of OpenAI, such as "bytes:\xf0"."""
        data = self.tokenizer.piece(token, special=True)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


EndpointChoices = ChatChoices | CompletionChoices


async def chat(http: HttpRequest, state: AppState, body: ChatRequest) -> Response:
    """Serve POST /v1/chat/completions."""
    generation, make_parts = await prepare_chat(state, body)
    builder = ChatChoices(generation.loaded.tokenizer, bool(body.logprobs), make_parts)
    return await answer(http, state, generation, body, builder)


async def completions(http: HttpRequest, state: AppState, body: CompletionRequest) -> Response:
    """Serve POST /v1/completions; with a `suffix`, infill."""
    role = state.engines.raw_prompt_role if body.suffix is None else "completion"
    loaded = await state.ready(role, body.model)
    generation = await state.prepare(loaded, _prepare_completions, loaded, body, state.grammars(loaded))
    return await answer(http, state, generation, body, CompletionChoices(loaded.tokenizer, body.logprobs is not None))


async def answer(
    http: HttpRequest, state: AppState, generation: GenerationRequest, body: OpenAIFields, builder: EndpointChoices
) -> Response:
    """Run the generation; return a JSON response, or an event stream if the request has `stream`."""
    head = {
        "id": builder.prefix + uuid.uuid4().hex,
        "object": builder.chunk if body.stream else builder.whole,
        "created": int(time.time()),
        "model": generation.loaded.files.id,
    }
    if body.stream:
        return EventStream(_events(state, generation, body, builder, head))
    return await json_of(http, _whole(state, generation, builder, head))


async def apply_template(http: HttpRequest, state: AppState, body: TemplateRequest) -> Response:
    """Serve POST /apply-template: return the rendered prompt, or its number of tokens if `count`."""
    if body.count:
        return json_response({"tokens": await count_prompt(state, body)})
    loaded = await state.ready("chat", body.model)
    return json_response({"prompt": (await asyncio.to_thread(prompt_of, loaded, body)).text})


async def count_input_tokens(http: HttpRequest, state: AppState, body: ChatRequest) -> Response:
    """Serve POST /v1/chat/completions/input_tokens, as llama-server does."""
    return json_response({"object": "response.input_tokens", "input_tokens": await count_prompt(state, body)})


async def embeddings(http: HttpRequest, state: AppState) -> Response:
    """Raise ApiError 501 for embeddings and reranking."""
    raise ApiError(501, NO_EMBEDDINGS, code="not_offered")


def _prepare_completions(loaded: LoadedPair, body: CompletionRequest, grammars: Grammars) -> GenerationRequest:
    prompts, count = prompts_of(body.prompt), body.n or 1
    if len(prompts) * count > MAX_CHOICES:
        raise ApiError(400, f"expected at most {MAX_CHOICES} choices over all prompts", param="n", code="invalid_value")
    limit = limit_of(body.max_tokens, body.n_predict, default=DEFAULT_MAX_TOKENS)
    constraint = constraint_of(body, grammars)
    prepared = (prepare_prompt(loaded, prompt, body.suffix, limit, body) for prompt in prompts)
    of_prompts = [with_choices(one, body, count, constraint, top_logprobs=body.logprobs) for one in prepared]
    return replace(of_prompts[0], requests=[request for one in of_prompts for request in one.requests])


async def _whole(
    state: AppState, generation: GenerationRequest, builder: EndpointChoices, head: dict[str, Any]
) -> dict[str, Any]:
    choices = await collect(state, generation)
    return {
        **head,
        "choices": [builder.choice(choice) for choice in choices],
        "usage": _usage(generation),
        "timings": timings(generation.requests),
    }


def _reason(choice: Choice, message: ChatMessageBuilder) -> str:
    """Return a chat choice's finish reason. With `end_repeats`, it may be "repeat"."""
    if choice.finish == "stop" and choice.ending and choice.ending.ended:
        return choice.ending.reason
    return "tool_calls" if message.calls and choice.finish == "stop" else choice.finish


async def _events(
    state: AppState, generation: GenerationRequest, body: OpenAIFields, builder: EndpointChoices, head: dict[str, Any]
) -> AsyncGenerator[Any]:
    with_usage = bool(body.stream_options and body.stream_options.get("include_usage"))
    head = {**head, "usage": None} if with_usage else head
    index, decoder = -1, generation.new_decoder()
    async with aclosing(pieces(state, generation, progress=bool(body.return_progress))) as source:
        async for piece in source:
            if index != piece.choice.index:
                index, decoder = piece.choice.index, generation.new_decoder()
                for first in builder.first(index):
                    yield {**head, "choices": [first]}
            if piece.is_last:
                *rest, last = builder.last(piece.choice)
                for part in rest:
                    yield {**head, "choices": [part]}
                yield {**head, "choices": [last], "timings": timings([piece.choice.request])}
            elif piece.text or piece.chosen or piece.progress or (body.steps and piece.step):
                extra: dict[str, Any] = {"timings": timings([piece.choice.request])} if body.timings_per_token else {}
                extra |= {"step": _step(generation, piece.step, decoder)} if body.steps and piece.step else {}
                extra |= {"prompt_progress": piece.progress} if piece.progress else {}
                yield {**head, "choices": [builder.part(piece)], **extra}
    if with_usage:
        yield {**head, "choices": [], "usage": _usage(generation)}
    yield DONE


def _step(generation: GenerationRequest, step: Step, decoder: TextDecoder) -> dict[str, Any]:
    """Return drafter, counts and tokens of a step. `sizes`: number of bytes that each token adds to the text."""
    tokenizer, ends = generation.loaded.tokenizer, generation.requests[0].ends
    return {
        "drafter": step.drafter,
        "drafted": step.drafted,
        "accepted": step.accepted,
        "tokens": [tokenizer.piece(token).decode("utf-8", "replace") for token in step.tokens],
        "sizes": [0 if token in ends else len(decoder.push([token]).encode()) for token in step.tokens],
        "ms": round(step.draft_ms + step.verify_ms, 3),
    }


def _usage(generation: GenerationRequest) -> dict[str, Any]:
    # Count each prompt once, in its first request: later choices find the prompt in the cache.
    prompts = {id(request.ids): request for request in reversed(generation.requests)}.values()
    prompt = sum(len(request.ids) for request in prompts)
    cached = sum(request.cached_tokens for request in prompts)
    completion = sum(request.stats.tokens for request in generation.requests)
    drafted = sum(request.stats.drafted for request in generation.requests)
    accepted = sum(request.stats.accepted for request in generation.requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }
