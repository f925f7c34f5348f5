"""POST /v1/chat/completions and /apply-template."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from msgspec import UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.answers.conversation import prepare, prompt_ids, template_of
from localdflash.answers.repetition import Repetition
from localdflash.loading.load import LoadedPair
from localdflash.server.api.ask import ALL_THE_ROOM, Ask, MakeConstraint, choices, constraint_of, limit_of, params_of
from localdflash.server.api.body import read
from localdflash.server.api.errors import ApiError
from localdflash.server.api.openai import ChatShape, answer
from localdflash.server.api.responses import json_response
from localdflash.server.api.schemas import ChatMessage, ChatRequest, TemplateRequest, TextPart
from localdflash.server.api.state import AppState
from localdflash.text.chat_template import Role, TemplateMessage, render
from localdflash.text.grammar import Grammars

TEMPERATURE = 1.0  # where a request does not say, as OpenAI documents
ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}


async def chat(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: AppState = http.app.state.shared
    body = await read(http, ChatRequest)
    loaded = await state.ready("chat", body.model)
    ask = await asyncio.to_thread(_ask, loaded, body, state.grammars(loaded))
    return await answer(http, state, ask, body, ChatShape(loaded.tokenizer, bool(body.logprobs)))


async def apply_template(http: HttpRequest) -> Response:
    """Return the prompt that a conversation makes, as text, or its number of tokens."""
    state: AppState = http.app.state.shared
    body = await read(http, TemplateRequest)
    loaded = await state.ready("chat", body.model)
    messages = messages_of(body.messages)
    goes_on = _goes_on(body.continue_final_message, messages)
    if body.count:
        variables: Mapping[str, str | bool] = body.chat_template_kwargs
        ids = await asyncio.to_thread(prompt_ids, loaded, messages, variables=variables, goes_on=goes_on)
        return json_response({"tokens": len(ids)})
    asked, begun = (messages[:-1], messages[-1].content) if goes_on else (messages, "")
    variables = {**loaded.tokenizer.template_tokens(), **body.chat_template_kwargs}
    prompt = await asyncio.to_thread(render, template_of(loaded), asked, variables=variables)
    return json_response({"prompt": "".join(piece.text for piece in prompt) + begun})


def _goes_on(asked: bool | None, messages: Sequence[TemplateMessage]) -> bool:
    """Whether the last message is an answer to continue."""
    if asked and messages[-1].role != "assistant":
        raise _bad("continue_final_message", "the last message is not from the assistant")
    return bool(asked)


def _ask(loaded: LoadedPair, body: ChatRequest, grammars: Grammars) -> Ask:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs", code="invalid_value")
    limit = limit_of(body.max_completion_tokens, body.max_tokens, body.n_predict, default=ALL_THE_ROOM)
    messages, params = messages_of(body.messages), params_of(body, TEMPERATURE)
    goes_on = _goes_on(body.continue_final_message, messages)
    prepared = prepare(loaded, messages, limit, params, variables=body.chat_template_kwargs, goes_on=goes_on)
    if body.prediction:
        text = _text(body.prediction.content, "prediction.content")
        prepared = replace(prepared, request=replace(prepared.request, documents=[loaded.tokenizer.encode(text)]))
    constraint = constraint_of(body, grammars, *_formats(body, grammars))
    alternatives = (body.top_logprobs or 0) if body.logprobs else None
    requests, stops = choices(loaded, prepared, body, body.n or 1, constraint, alternatives, param="messages")
    return Ask(loaded, requests, stops, document=body.document, ending=Repetition if body.end_repeats else None)


def messages_of(given: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """Messages as the chat template takes them; ApiError names what is wrong with one."""
    messages = []
    for number, message in enumerate(given):
        place = f"messages[{number}]"
        if message.role not in ROLES:
            raise _bad(f"{place}.role", f"unknown; one of {', '.join(ROLES)}")
        if message.tool_calls:
            raise _bad(f"{place}.tool_calls", "tools are not supported; leave them out")
        if isinstance(message.content, UnsetType):
            raise _bad(f"{place}.content", "missing")
        messages.append(TemplateMessage(ROLES[message.role], _text(message.content, f"{place}.content")))
    return messages


def _text(content: str | list[TextPart] | None, place: str) -> str:
    """A message's content as one text."""
    if not isinstance(content, list):
        return content or ""
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise _bad(f"{place}[{number}]", "only parts of type text are supported")
    return "".join(part.text or "" for part in content)


def _formats(body: ChatRequest, grammars: Grammars) -> list[tuple[str, MakeConstraint]]:
    """The constraint that `response_format` asks for, if any."""
    given = body.response_format
    if given is None or given.type == "text":
        return []
    schema = given.json_schema.schema if given.json_schema else given.schema
    if schema is not None:
        known = schema
        return [("response_format", lambda: grammars.json_schema(known))]
    if given.type == "json_schema":
        raise _bad("response_format.json_schema.schema", "missing")
    return [("response_format", grammars.json_object)]


def _bad(param: str, what: str) -> ApiError:
    return ApiError(400, f"{param}: {what}", param=param, code="invalid_value")
