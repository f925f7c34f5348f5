"""Answers in OpenAI's shapes, whole or as events: what chat and completions share, and what each has alone."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.engine.pair import Step
from localdflash.engine.sampling import Chosen
from localdflash.server.api.answer_parts import AnswerParts
from localdflash.server.api.answers import Choice, ChoicePiece, cached_tokens, collect, pieces, timings
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask
from localdflash.server.api.message_parts import MessageParts
from localdflash.server.api.responses import json_response
from localdflash.server.api.schemas import OpenAI
from localdflash.server.api.streams import DONE, GONE, Disconnected, EventStream, event, until_disconnect
from localdflash.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot be


class EndpointShape(Protocol):
    """How an endpoint writes its choices."""

    prefix: str  # of ids
    whole: str  # object names
    chunk: str

    def first(self, index: int) -> dict[str, Any] | None:
        """The part of a stream before a choice's text."""

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """A piece of a choice in a stream."""

    def rest(self, choice: Choice) -> dict[str, Any] | None:
        """What was held back of a choice in a stream, if anything was."""

    def last(self, choice: Choice) -> dict[str, Any]:
        """The end of a choice in a stream."""

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A complete choice."""


@dataclass(frozen=True)
class ChatShape:
    """The shapes of /v1/chat/completions. `parts` makes what takes the text of a choice apart."""

    tokenizer: Tokenizer
    logprobs: bool
    parts: Callable[[], AnswerParts]
    _parts: dict[int, MessageParts] = field(default_factory=dict)  # by choice, in a stream
    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def first(self, index: int) -> dict[str, Any] | None:
        """See `EndpointShape`."""
        self._parts[index] = MessageParts(self.parts())
        return self._delta(index, {"role": "assistant", "content": ""})

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """See `EndpointShape`."""
        index = piece.choice.index
        told = self._delta(index, self._parts[index].push(piece.text) or {"content": ""})
        return {**told, "logprobs": self._logprobs(piece.chosen)}

    def rest(self, choice: Choice) -> dict[str, Any] | None:
        """See `EndpointShape`."""
        rest = self._parts[choice.index].finish()
        return self._delta(choice.index, rest) if rest else None

    def last(self, choice: Choice) -> dict[str, Any]:
        """See `EndpointShape`."""
        return {**self._delta(choice.index, {}), "finish_reason": _reason(choice, self._parts[choice.index])}

    def choice(self, choice: Choice) -> dict[str, Any]:
        """See `EndpointShape`."""
        parts = MessageParts(self.parts())
        return {
            "index": choice.index,
            "message": parts.message(choice.text),
            "logprobs": self._logprobs(choice.chosen),
            "finish_reason": _reason(choice, parts),
        }

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, chosen: Sequence[Chosen]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = [
            {
                **self._token(one.token, one.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in one.likeliest],
            }
            for one in chosen
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.piece(token, special=True)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(data),
        }


def _reason(choice: Choice, parts: MessageParts) -> str:
    """Why a chat's answer ended: "repeat" only where the request has asked for that end."""
    if choice.finish == "stop" and choice.ending and choice.ending.ended:
        return choice.ending.reason
    return "tool_calls" if parts.called and choice.finish == "stop" else choice.finish


@dataclass(frozen=True)
class CompletionShape:
    """The shapes of /v1/completions. Choice i of prompt p is number p * n + i."""

    tokenizer: Tokenizer
    logprobs: bool
    _offsets: dict[int, int] = field(default_factory=dict)  # characters told so far, by choice
    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def first(self, index: int) -> dict[str, Any] | None:
        """See `EndpointShape`."""
        return None

    def part(self, piece: ChoicePiece) -> dict[str, Any]:
        """See `EndpointShape`."""
        return self._told(piece.choice, piece.text, piece.chosen, None)

    def rest(self, choice: Choice) -> dict[str, Any] | None:
        """See `EndpointShape`."""
        return None

    def last(self, choice: Choice) -> dict[str, Any]:
        """See `EndpointShape`."""
        return self._told(choice, "", (), choice.finish)

    def choice(self, choice: Choice) -> dict[str, Any]:
        """See `EndpointShape`."""
        return self._told(choice, choice.text, choice.chosen, choice.finish)

    def _told(self, choice: Choice, text: str, chosen: Sequence[Chosen], finish: str | None) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice.index, chosen) if self.logprobs else None,
            "finish_reason": finish,
        }

    def _logprobs(self, index: int, chosen: Sequence[Chosen]) -> dict[str, Any]:
        offsets = []
        for one in chosen:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(self._spelled(one.token))
        return {
            "tokens": [self._spelled(one.token) for one in chosen],
            "token_logprobs": [max(one.logprob, LEAST_LOGPROB) for one in chosen],
            "top_logprobs": [
                {self._spelled(token): max(logprob, LEAST_LOGPROB) for token, logprob in one.likeliest}
                for one in chosen
            ],
            "text_offset": offsets,
        }

    def _spelled(self, token: int) -> str:
        return self.tokenizer.piece(token, special=True).decode("utf-8", "replace")


async def answer(http: HttpRequest, state: AppState, ask: Ask, body: OpenAI, shape: EndpointShape) -> Response:
    """The response to a request that generates."""
    head = {"id": shape.prefix + uuid.uuid4().hex, "created": int(time.time()), "model": ask.loaded.files.id}
    if body.stream:
        return EventStream(_events(state, ask, body, shape, {**head, "object": shape.chunk}))
    try:
        found = await until_disconnect(http.receive, collect(state, ask))
    except Disconnected:
        return Response(status_code=GONE)
    return json_response(
        {
            **head,
            "object": shape.whole,
            "choices": [shape.choice(choice) for choice in found],
            "usage": _usage(ask),
            "timings": timings(ask.requests),
        }
    )


async def _events(
    state: AppState, ask: Ask, body: OpenAI, shape: EndpointShape, head: dict[str, Any]
) -> AsyncGenerator[bytes]:
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = {**head, "usage": None} if with_usage else head
    begun: set[int] = set()
    sizes = _Sizes(ask)
    async with aclosing(pieces(state, ask)) as source:
        async for piece in source:
            index = piece.choice.index
            if index not in begun:
                begun.add(index)
                sizes = _Sizes(ask)
                if first := shape.first(index):
                    yield event({**head, "choices": [first]})
            if piece.choice.finish and not (piece.text or piece.chosen):
                if rest := shape.rest(piece.choice):
                    yield event({**head, "choices": [rest]})
                told = timings([piece.choice.request])
                yield event({**head, "choices": [shape.last(piece.choice)], "timings": told})
            elif body.steps and piece.step:
                yield event({**head, "choices": [shape.part(piece)], "step": _step(ask, piece.step, sizes)})
            elif piece.text or piece.chosen:
                yield event({**head, "choices": [shape.part(piece)]})
    if with_usage:
        yield event({**head, "choices": [], "usage": _usage(ask)})
    yield DONE


class _Sizes:
    """Splits a choice's text among its tokens: the bytes that each completes, which add up to the text's."""

    def __init__(self, ask: Ask) -> None:
        self._text, self._ends = ask.spelling(), ask.requests[0].ends

    def push(self, ids: Sequence[int]) -> list[int]:
        """The sizes of the next tokens; one that ends an answer has none."""
        return [0 if token in self._ends else len(self._text.push([token]).encode()) for token in ids]


def _step(ask: Ask, step: Step, sizes: _Sizes) -> dict[str, Any]:
    """How the tokens of a step were made: the first `accepted` of them were drafted."""
    tokenizer = ask.loaded.tokenizer
    return {
        "drafter": step.drafter,
        "drafted": step.drafted,
        "accepted": step.accepted,
        "tokens": [tokenizer.piece(token).decode("utf-8", "replace") for token in step.tokens],
        "sizes": sizes.push(step.tokens),
        "ms": round(step.draft_ms + step.verify_ms, 3),
    }


def _usage(ask: Ask) -> dict[str, Any]:
    prompts = {id(request.ids): request for request in reversed(ask.requests)}.values()  # the first of each
    prompt = sum(len(request.ids) for request in prompts)
    cached = sum(map(cached_tokens, prompts))
    completion = sum(request.stats.tokens for request in ask.requests)
    drafted = sum(request.stats.drafted for request in ask.requests)
    accepted = sum(request.stats.accepted for request in ask.requests)
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
