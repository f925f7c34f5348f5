"""Errors over HTTP, in Anthropic's or OpenAI's shape: one line of message, never a prompt, never our internals."""

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from localdflash.base.errors import LocaldflashError, QueueFull
from localdflash.server.refusals import ERRORS

MESSAGES = "/v1/messages"
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


class ApiError(LocaldflashError):
    """An error with a status and a code of its own."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def bad(param: str, what: str) -> ApiError:
    """Return an error that names an invalid field."""
    return ApiError(400, f"{param}: {what}", param=param, code="invalid_value")


def as_api_error(error: BaseException) -> ApiError:
    """Return what a client is told of this error; nothing of one that we did not expect."""
    match error:
        case ApiError():
            return error
        case HTTPException():
            return ApiError(error.status_code, _http_message(error), **dict(error.headers or {}))
        case LocaldflashError():
            status, code = next(known for kind, known in reversed(ERRORS.items()) if isinstance(error, kind))
            retry = {"Retry_After": "1"} if isinstance(error, QueueFull) else {}
            return ApiError(status, " ".join(str(error).split()), code=code, **retry)
    return ApiError(500, "an error inside of localdflash: its log says more", code="internal_error")


def error_body(error: ApiError, path: str = "") -> dict[str, Any]:
    """Return the error as JSON, for a request of this path. Without a code, OpenAI's has the status as its code."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if f"{path}/".startswith(f"{MESSAGES}/"):
        kind = _ANTHROPIC.get(error.status, kind if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error)}}
    kind = "authentication_error" if error.status == 401 else kind
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code or error.status}}


def error_response(error: BaseException, path: str) -> Response:
    """Return the response for an error of a request of this path."""
    told = as_api_error(error)
    return Response(msgspec.json.encode(error_body(told, path)), told.status, told.headers, "application/json")


async def on_error(request: Request, error: Exception) -> Response:
    """See `starlette.applications.Starlette`."""
    return error_response(error, request.url.path)


def _http_message(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "no such path; docs/api.md lists what there is"
        case 405:
            return f"this path takes {(error.headers or {}).get('Allow', 'another method')}"
    return HTTPStatus(error.status_code).phrase.lower()
