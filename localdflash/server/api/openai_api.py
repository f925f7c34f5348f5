"""OpenAI's POST /v1/chat/completions and /v1/completions, whole or as events, and /apply-template.

A completion with a suffix fills in the middle, without healing, up to `max_tokens` and `stop`, which such a client sets
for what it does with the text: it may read the log probabilities of the tokens. Text for editors comes from
`llama_server_api` and `complete_endpoint`.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.engine.pair import Step
from localdflash.engine.sampling import SampledToken
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_request import (
    described,
    goes_on,
    messages_of,
    prepare_chat,
    render_chat,
)
from localdflash.server.api.completion_request import prepare_prompt, prompts_of
from localdflash.server.api.content_blocks import AnswerParts, PartsDelta
from localdflash.server.api.generation import (
    Choice,
    ChoicePiece,
    GenerationRequest,
    cached_tokens,
    choices,
    collect,
    constraint_of,
    limit_of,
    pieces,
    timings,
)
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.http_responses import DONE, EventStream, event, json_of, json_response
from localdflash.server.api.request_body import read
from localdflash.server.api.schemas import ChatRequest, CompletionRequest, OpenAI, TemplateRequest
from localdflash.text.grammar import Grammars
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallDelta

MIN_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot be
DEFAULT_MAX_TOKENS = 16  # where a request does not say, as OpenAI documents
MAX_CHOICES = 16


NO_EMBEDDINGS = (
    "embeddings are not offered: the models here are trained to write, and their last states tell texts apart badly;"
    " take a server with a model that is made for it"
)


class MessageParts:
    """The message of one choice as its text grows."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self._calls: list[dict[str, Any]] = []  # as a whole message has them

    @property
    def called(self) -> bool:
        """Return whether there is a call by now."""
        return bool(self._calls)

    def push(self, text: str) -> dict[str, Any]:
        """Return the delta that a piece of text adds; it may be empty."""
        return self._delta(self._parts.push(text))

    def finish(self) -> dict[str, Any]:
        """Return the delta of what was held back, at the end."""
        return self._delta(self._parts.finish())

    def message(self, text: str) -> dict[str, Any]:
        """Return all of it at once, as a message."""
        parts = [self.push(text), self.finish()]
        whole: dict[str, Any] = {"role": "assistant", "content": "".join(part.get("content", "") for part in parts)}
        whole["refusal"] = None
        if thoughts := "".join(part.get("reasoning_content", "") for part in parts):
            whole["reasoning_content"] = thoughts
        if self._calls:
            whole |= {"content": whole["content"] or None, "tool_calls": self._calls}
        return whole

    def _delta(self, added: PartsDelta) -> dict[str, Any]:
        told: dict[str, Any] = {
            "reasoning_content": added.thoughts,
            "content": added.said,
            "tool_calls": [*map(self._call, added.calls)],
        }
        return {name: part for name, part in told.items() if part}

    def _call(self, delta: CallDelta) -> dict[str, Any]:
        if delta.index < len(self._calls):
            self._calls[delta.index]["function"]["arguments"] += delta.arguments
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        function = {"name": delta.name, "arguments": delta.arguments}
        call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
        self._calls.append({**call, "function": dict(function)})
        return {"index": delta.index, **call}


@dataclass(frozen=True)
class ChatShape:
    """The shapes of /v1/chat/completions. `parts` makes what takes the text of a choice apart."""

    tokenizer: Tokenizer
    logprobs: bool
    parts: Callable[[], AnswerParts]
    _parts: dict[int, MessageParts] = field(default_factory=dict)  # by choice, in a stream
    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"  # of ids; names of objects

    def first(self, index: int) -> dict[str, Any] | None:
        """Return the part of a stream before a choice's text."""
        self._parts[index] = MessageParts(self.parts())
        return self._delta(index, {"role": "assistant", "content": ""})

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """Return a piece of a choice in a stream."""
        index = piece.choice.index
        told = self._delta(index, self._parts[index].push(piece.text) or {"content": ""})
        return {**told, "logprobs": self._logprobs(piece.chosen)}

    def rest(self, choice: Choice) -> dict[str, Any] | None:
        """Return what was held back of a choice in a stream, if anything was."""
        rest = self._parts[choice.index].finish()
        return self._delta(choice.index, rest) if rest else None

    def last(self, choice: Choice) -> dict[str, Any]:
        """Return the end of a choice in a stream."""
        return {**self._delta(choice.index, {}), "finish_reason": _reason(choice, self._parts[choice.index])}

    def choice(self, choice: Choice) -> dict[str, Any]:
        """Return a complete choice."""
        parts = MessageParts(self.parts())
        return {
            "index": choice.index,
            "message": parts.message(choice.text),
            "logprobs": self._logprobs(choice.chosen),
            "finish_reason": _reason(choice, parts),
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
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(logprob, MIN_LOGPROB),
            "bytes": list(data),
        }


@dataclass(frozen=True)
class CompletionShape:
    """The shapes of /v1/completions. Choice i of prompt p is number p * n + i."""

    tokenizer: Tokenizer
    logprobs: bool
    _offsets: dict[int, int] = field(default_factory=dict)  # characters told so far, by choice
    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def first(self, index: int) -> dict[str, Any] | None:
        """See `ChatShape`."""
        return None

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """See `ChatShape`."""
        return self._told(piece.choice, piece.text, piece.chosen, None)

    def rest(self, choice: Choice) -> dict[str, Any] | None:
        """See `ChatShape`."""
        return None

    def last(self, choice: Choice) -> dict[str, Any]:
        """See `ChatShape`."""
        return self._told(choice, "", (), choice.finish)

    def choice(self, choice: Choice) -> dict[str, Any]:
        """See `ChatShape`."""
        return self._told(choice, choice.text, choice.chosen, choice.finish)

    def _told(self, choice: Choice, text: str, chosen: Sequence[SampledToken], finish: str | None) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice.index, chosen) if self.logprobs else None,
            "finish_reason": finish,
        }

    def _logprobs(self, index: int, chosen: Sequence[SampledToken]) -> dict[str, Any]:
        offsets = []
        for one in chosen:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(self._spelled(one.token))
        return {
            "tokens": [self._spelled(one.token) for one in chosen],
            "token_logprobs": [max(one.logprob, MIN_LOGPROB) for one in chosen],
            "top_logprobs": [
                {self._spelled(token): max(logprob, MIN_LOGPROB) for token, logprob in one.top_logprobs}
                for one in chosen
            ],
            "text_offset": offsets,
        }

    def _spelled(self, token: int) -> str:
        return self.tokenizer.piece(token, special=True).decode("utf-8", "replace")


EndpointShape = ChatShape | CompletionShape


async def chat(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: AppState = http.app.state.shared
    body = await read(http, ChatRequest)
    generation, make_parts = await prepare_chat(state, body)
    shape = ChatShape(generation.loaded.tokenizer, bool(body.logprobs), make_parts)
    return await answer(http, state, generation, body, shape)


async def completions(http: HttpRequest) -> Response:
    """Answer with what follows a prompt."""
    state: AppState = http.app.state.shared
    body = await read(http, CompletionRequest)
    role = state.engines.continuing if body.suffix is None else "completion"
    loaded = await state.ready(role, body.model)
    generation = await asyncio.to_thread(_of_prompts, loaded, body, state.grammars(loaded))
    return await answer(http, state, generation, body, CompletionShape(loaded.tokenizer, body.logprobs is not None))


async def answer(
    http: HttpRequest, state: AppState, generation: GenerationRequest, body: OpenAI, shape: EndpointShape
) -> Response:
    """Return the response to a request that generates."""
    head = {"id": shape.prefix + uuid.uuid4().hex, "created": int(time.time()), "model": generation.loaded.files.id}
    if body.stream:
        return EventStream(_events(state, generation, body, shape, {**head, "object": shape.chunk}))
    return await json_of(http, _whole(state, generation, shape, {**head, "object": shape.whole}))


async def apply_template(http: HttpRequest) -> Response:
    """Return the prompt that a conversation makes, as text, or its number of tokens."""
    state: AppState = http.app.state.shared
    body = await read(http, TemplateRequest)
    loaded = await state.ready("chat", body.model)
    messages = messages_of(body.messages)
    render = partial(
        render_chat,
        loaded,
        messages,
        variables=body.chat_template_kwargs,
        goes_on=goes_on(body.continue_final_message, messages),
        tools=described(body.tools or ()),
    )
    if body.count:
        return json_response({"tokens": len(await asyncio.to_thread(lambda: render().encode()))})
    return json_response({"prompt": (await asyncio.to_thread(render)).text})


async def embeddings(_: HttpRequest) -> Response:
    """Raise the ApiError that says why."""
    raise ApiError(404, NO_EMBEDDINGS, code="not_offered")


def _of_prompts(loaded: LoadedPair, body: CompletionRequest, grammars: Grammars) -> GenerationRequest:
    prompts, count = prompts_of(body.prompt), body.n or 1
    if len(prompts) * count > MAX_CHOICES:
        raise ApiError(400, f"more than {MAX_CHOICES} choices of all prompts", param="n", code="invalid_value")
    limit = limit_of(body.max_tokens, body.n_predict, default=DEFAULT_MAX_TOKENS)
    constraint = constraint_of(body, grammars)
    asked = [
        choices(
            loaded, prepare_prompt(loaded, prompt, body.suffix, limit, body), body, count, constraint, body.logprobs
        )
        for prompt in prompts
    ]
    requests = [request for of_prompt, _ in asked for request in of_prompt]
    return GenerationRequest(loaded, requests, asked[0][1], urgent=True, document=body.document)


async def _whole(
    state: AppState, generation: GenerationRequest, shape: EndpointShape, head: dict[str, Any]
) -> dict[str, Any]:
    found = await collect(state, generation)
    return {
        **head,
        "choices": [shape.choice(choice) for choice in found],
        "usage": _usage(generation),
        "timings": timings(generation.requests),
    }


def _reason(choice: Choice, parts: MessageParts) -> str:
    """Why a chat's answer ended: "repeat" only where the request has asked for that end."""
    if choice.finish == "stop" and choice.ending and choice.ending.ended:
        return choice.ending.reason
    return "tool_calls" if parts.called and choice.finish == "stop" else choice.finish


async def _events(
    state: AppState,
    generation: GenerationRequest,
    body: OpenAI,
    shape: EndpointShape,
    head: dict[str, Any],
) -> AsyncGenerator[bytes]:
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = {**head, "usage": None} if with_usage else head
    begun: set[int] = set()
    sizes = _Sizes(generation)
    async with aclosing(pieces(state, generation)) as source:
        async for piece in source:
            index = piece.choice.index
            if index not in begun:
                begun.add(index)
                sizes = _Sizes(generation)
                if first := shape.first(index):
                    yield event({**head, "choices": [first]})
            if piece.choice.finish and not (piece.text or piece.chosen):
                if rest := shape.rest(piece.choice):
                    yield event({**head, "choices": [rest]})
                told = timings([piece.choice.request])
                yield event({**head, "choices": [shape.last(piece.choice)], "timings": told})
            elif body.steps and piece.step:
                yield event({**head, "choices": [shape.part(piece)], "step": _step(generation, piece.step, sizes)})
            elif piece.text or piece.chosen:
                yield event({**head, "choices": [shape.part(piece)]})
    if with_usage:
        yield event({**head, "choices": [], "usage": _usage(generation)})
    yield DONE


class _Sizes:
    """Splits a choice's text among its tokens: the bytes that each completes, which add up to the text's."""

    def __init__(self, generation: GenerationRequest) -> None:
        self._text, self._ends = generation.spelling(), generation.requests[0].ends

    def push(self, ids: Sequence[int]) -> list[int]:
        """Return the sizes of the next tokens; one that ends an answer has none."""
        return [0 if token in self._ends else len(self._text.push([token]).encode()) for token in ids]


def _step(generation: GenerationRequest, step: Step, sizes: _Sizes) -> dict[str, Any]:
    """Return how the tokens of a step were made: the first `accepted` of them were drafted."""
    tokenizer = generation.loaded.tokenizer
    return {
        "drafter": step.drafter,
        "drafted": step.drafted,
        "accepted": step.accepted,
        "tokens": [tokenizer.piece(token).decode("utf-8", "replace") for token in step.tokens],
        "sizes": sizes.push(step.tokens),
        "ms": round(step.draft_ms + step.verify_ms, 3),
    }


def _usage(generation: GenerationRequest) -> dict[str, Any]:
    prompts = {id(request.ids): request for request in reversed(generation.requests)}.values()  # the first of each
    prompt = sum(len(request.ids) for request in prompts)
    cached = sum(map(cached_tokens, prompts))
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
