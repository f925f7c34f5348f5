"""POST /v1/messages and /v1/messages/count_tokens."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.server.answers.conversation import prompt_ids
from localdflash.server.api.answer_parts import AnswerParts
from localdflash.server.api.anthropic.anthropic_body import CountRequest, MessagesRequest
from localdflash.server.api.anthropic.anthropic_request import chat_request
from localdflash.server.api.anthropic.message import events, message
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask
from localdflash.server.api.chat_endpoint import ask_of, parts_of, variables_of
from localdflash.server.api.chat_messages import messages_of
from localdflash.server.api.http_errors import MESSAGES, ApiError, error_body
from localdflash.server.api.request_body import read
from localdflash.server.api.responses import json_response
from localdflash.server.api.streams import GONE, Disconnected, EventStream, named_event, until_disconnect
from localdflash.server.api.tools import tools_of


async def messages(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: AppState = http.app.state.shared
    body = await read(http, MessagesRequest)
    loaded = await state.ready("chat", body.model)
    asked = chat_request(body)
    tools = tools_of(asked)
    ask = await asyncio.to_thread(ask_of, loaded, asked, tools, state.grammars(loaded))
    parts, stops = parts_of(ask, asked, tools)(), body.stop_sequences or ()
    if body.stream:
        return EventStream(_named(state, ask, parts, stops), _failure)
    try:
        return json_response(await until_disconnect(http.receive, message(state, ask, parts, stops)))
    except Disconnected:
        return Response(status_code=GONE)


async def count_tokens(http: HttpRequest) -> Response:
    """Tell how many tokens the prompt of a conversation has, whether or not it fits."""
    state: AppState = http.app.state.shared
    body = await read(http, CountRequest)
    loaded = await state.ready("chat", body.model)
    asked = chat_request(body)
    counted = partial(
        prompt_ids,
        loaded,
        messages_of(asked.messages),
        variables=variables_of(asked),
        goes_on=bool(asked.continue_final_message),
        tools=tools_of(asked).described,
    )
    return json_response({"input_tokens": len(await asyncio.to_thread(counted))})


async def _named(state: AppState, ask: Ask, parts: AnswerParts, stops: Sequence[str]) -> AsyncGenerator[bytes]:
    async with aclosing(events(state, ask, parts, stops)) as source:
        async for event in source:
            yield named_event(event)


def _failure(error: ApiError) -> bytes:
    return named_event(error_body(error, MESSAGES))
