"""Responses that end with their client: JSON and event streams, both cancelled when the connection closes."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localdflash.server.api.http_errors import ApiError, as_api_error, error_body

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def json_response(body: Any, status: int = 200) -> Response:
    """Return a JSON response; NaN and infinities, which JSON lacks, become null."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def json_of(http: HttpRequest, work: Coroutine[Any, Any, Any]) -> Response:
    """Return the result of `work` as JSON; if the client leaves before, cancel the work."""
    return json_response(await until_disconnect(http.receive, work))


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; if the client leaves before, cancel the work and raise ClientDisconnect."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(body: Any) -> bytes:
    """Encode a server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(body: Mapping[str, Any]) -> bytes:
    """Encode a server-sent event whose name is the `type` of its body."""
    return f"event: {body['type']}\n".encode() + event(body)


async def named_events(bodies: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Encode a stream of server-sent events that have names."""
    async with aclosing(bodies) as source:
        async for body in source:
            yield named_event(body)


class EventStream(Response):
    """Stream of server-sent events; an error before the first has its own status, a later one is the last event."""

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        failure: Callable[[ApiError], bytes] = lambda error: event(error_body(error)),
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._failure = events, failure
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await until_disconnect(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                async for data in events:
                    await self._send_part(send, data)
            except Exception as error:
                if not self._started:
                    raise
                await self._send_part(send, self._failure(as_api_error(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_part(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})
