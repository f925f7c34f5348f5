"""Send errors, JSON and event streams over HTTP, and cancel the request of a client that disconnects."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localdflash.base.errors import EngineDisconnect, LocaldflashError, QueueFull
from localdflash.server.refusals import ERRORS

T = TypeVar("T")
DONE = msgspec.Raw(b"[DONE]")  # last event of OpenAI's streams
MESSAGES_PATH = "/v1/messages"
HEADERS_SECONDS = 0.5  # delay of a stream's headers, so that an early error can have its own HTTP status
PING_SECONDS = 5.0  # longest time in which a stream sends nothing
_ANTHROPIC_TYPES = {  # Anthropic's error types by HTTP status
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


class ApiError(LocaldflashError):
    """Error with an HTTP status, the name of an invalid field (`param`), an error code and HTTP headers."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def bad(param: str, problem: str) -> ApiError:
    """Return an error 400 that names an invalid field."""
    return ApiError(400, f"{param}: {problem}", param=param, code="invalid_value")


def as_api_error(error: BaseException) -> ApiError:
    """Return the error to send to the client; an unexpected error becomes an error 500 without details."""
    match error:
        case ApiError():
            return error
        case HTTPException():
            return ApiError(error.status_code, _http_message(error), **dict(error.headers or {}))
        case LocaldflashError():
            status, code = next(known for kind, known in reversed(ERRORS.items()) if isinstance(error, kind))
            retry = {"Retry_After": "1"} if isinstance(error, QueueFull) else {}
            return ApiError(status, " ".join(str(error).split()), code=code, **retry)
        case asyncio.CancelledError():
            return as_api_error(EngineDisconnect("the engine is stopping; send the request again"))
    return ApiError(500, "internal error; see the log of localdflash", code="internal_error")


def error_body(error: ApiError, path: str = "") -> dict[str, Any]:
    """Return an error's JSON body: in Anthropic's format for /v1/messages, else in OpenAI's (default code: status)."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if f"{path}/".startswith(f"{MESSAGES_PATH}/"):
        kind = _ANTHROPIC_TYPES.get(error.status, kind if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error)}}
    kind = "authentication_error" if error.status == 401 else kind
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code or error.status}}


def error_response(error: BaseException, path: str) -> Response:
    """Return the response to a failed request; `path` decides the format."""
    known = as_api_error(error)
    return Response(msgspec.json.encode(error_body(known, path)), known.status, known.headers, "application/json")


async def on_error(request: HttpRequest, error: Exception) -> Response:
    """Return the response for an exception of a handler; Starlette calls this."""
    return error_response(error, request.url.path)


def _http_message(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "unknown path; docs/api.md lists the paths"
        case 405:
            return f"wrong method (expected {(error.headers or {}).get('Allow', 'another one')})"
    return HTTPStatus(error.status_code).phrase.lower()


def json_response(body: Any, status: int = 200) -> Response:
    """Return a JSON response; NaN and infinities, which JSON lacks, become null."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def json_of(http: HttpRequest, work: Coroutine[Any, Any, Any]) -> Response:
    """Return the result of `work` as JSON; see `until_disconnect`."""
    return json_response(await until_disconnect(http.receive, work))


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; if the client disconnects before, cancel `work` and raise ClientDisconnect."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def with_warning(response: Response, left_out: Sequence[str]) -> Response:
    """Return the response; if tools were left out of the prompt, add a Warning header with their names."""
    if left_out:
        response.headers["Warning"] = f'299 localdflash "tools left out: {", ".join(left_out)}"'
    return response


def event(body: Any) -> bytes:
    """Encode a server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(body: Mapping[str, Any]) -> bytes:
    """Encode a server-sent event whose name is the `type` of its body."""
    return f"event: {body['type']}\n".encode() + event(body)


class EventStream(Response):
    """Stream of server-sent events. An error before the headers gets its own status; a later error is the last event.

    `failure` makes the event of an error. `ping` is sent while there are no events, so that clients do not time out.
    """

    def __init__(
        self,
        events: AsyncGenerator[Any],
        encode: Callable[[Any], bytes] = event,
        failure: Callable[[ApiError], Any] = error_body,
        ping: bytes = b": ping\n\n",  # a comment, which clients ignore
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._encode, self._failure, self._ping = events, encode, failure, ping
        self._started = False
        self._sending = asyncio.Lock()
        self._ping_at = time.monotonic() + HEADERS_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, as ASGI requires, until the client disconnects."""
        await until_disconnect(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        pinging = asyncio.create_task(self._send_pings(send))
        try:
            async with aclosing(self._events) as events:
                try:
                    async for body in events:
                        await self._send_part(send, self._encode(body))
                except (Exception, asyncio.CancelledError) as error:
                    if not self._started:
                        raise
                    await self._send_part(send, self._encode(self._failure(as_api_error(error))))
        finally:
            pinging.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pings(self, send: Send) -> None:
        """Send a ping after `HEADERS_SECONDS`, then whenever nothing was sent for `PING_SECONDS`."""
        while True:
            await asyncio.sleep(self._ping_at - time.monotonic())
            if time.monotonic() >= self._ping_at:
                await self._send_part(send, self._ping)

    async def _send_part(self, send: Send, data: bytes) -> None:
        self._ping_at = time.monotonic() + PING_SECONDS
        async with self._sending:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": True})
