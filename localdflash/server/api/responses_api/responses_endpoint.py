"""POST /v1/responses."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.server.api.answer_parts import AnswerParts
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_endpoint import ask_of, parts_of
from localdflash.server.api.request_body import read
from localdflash.server.api.responses import json_response
from localdflash.server.api.responses_api.response import ResponseWriter
from localdflash.server.api.responses_api.responses_body import ResponsesRequest
from localdflash.server.api.responses_api.responses_request import chat_request
from localdflash.server.api.streams import GONE, Disconnected, EventStream, named_event, until_disconnect
from localdflash.server.api.tools import tools_of


async def responses(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: AppState = http.app.state.shared
    body = await read(http, ResponsesRequest)
    loaded = await state.ready("chat", body.model)
    asked = chat_request(body)
    tools = tools_of(asked)
    ask = await asyncio.to_thread(ask_of, loaded, asked, tools, state.grammars(loaded))
    writer, parts = ResponseWriter(ask, body), parts_of(ask, asked, tools)()
    if body.stream:
        return EventStream(_named(writer, state, parts), lambda error: named_event(writer.failed(error)))
    try:
        return json_response(await until_disconnect(http.receive, _whole(writer, state, parts)))
    except Disconnected:
        return Response(status_code=GONE)


async def _named(writer: ResponseWriter, state: AppState, parts: AnswerParts) -> AsyncGenerator[bytes]:
    async with aclosing(writer.events(state, parts)) as source:
        async for event in source:
            yield named_event(event)


async def _whole(writer: ResponseWriter, state: AppState, parts: AnswerParts) -> Any:
    """The response of the last event."""
    async with aclosing(writer.events(state, parts)) as source:
        *_, last = [event async for event in source]
    return last["response"]
