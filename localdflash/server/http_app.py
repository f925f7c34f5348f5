"""The daemon's HTTP app: which handler answers which path, errors in one shape, every request counted."""

import logging
import traceback
from collections.abc import AsyncGenerator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localdflash.base.errors import LocaldflashError
from localdflash.server.api import (
    chat_endpoint,
    complete_endpoint,
    completions,
    control,
    embeddings,
    native,
    ports,
    slots_endpoint,
    tokens,
)
from localdflash.server.api.anthropic import anthropic_endpoint as anthropic
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_errors import error_response, on_error
from localdflash.server.api.metrics import Metrics
from localdflash.server.api.responses_api import responses_endpoint as responses_api
from localdflash.server.api.streams import GONE
from localdflash.server.engines import Engines
from localdflash.server.tcp import Tcp

log = logging.getLogger(__name__)

EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/embedding")
ROUTES = [
    Route("/v1/models", control.models, methods=["GET"]),
    Route("/v1/models/{model:path}", control.model, methods=["GET"]),
    Route("/v1/chat/completions", chat_endpoint.chat, methods=["POST"]),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/v1/responses", responses_api.responses, methods=["POST"]),
    Route("/v1/messages", anthropic.messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", anthropic.count_tokens, methods=["POST"]),
    Route("/complete", complete_endpoint.complete, methods=["POST"]),
    Route("/infill", native.infill, methods=["POST"]),
    Route("/completion", native.completion, methods=["POST"]),
    Route("/tokenize", tokens.tokenize, methods=["POST"]),
    Route("/detokenize", tokens.detokenize, methods=["POST"]),
    Route("/apply-template", chat_endpoint.apply_template, methods=["POST"]),
    Route("/props", control.props, methods=["GET"]),
    Route("/slots", slots_endpoint.slots, methods=["GET"]),
    Route("/health", control.health, methods=["GET"]),
    Route("/v1/health", control.health, methods=["GET"]),
    Route("/metrics", control.metrics, methods=["GET"]),
    *(Route(path, embeddings.embeddings, methods=["POST"]) for path in EMBEDDINGS),
    Route("/ps", control.ps, methods=["GET"]),
    Route("/listen", ports.listen, methods=["POST"]),
    Route("/load", control.load, methods=["POST"]),
    Route("/stop", control.stop, methods=["POST"]),
]


def create_app(
    engines: Engines,
    metrics: Metrics | None = None,
    *,
    stop: Callable[[], None] | None = None,
    idle: Callable[[], float] = lambda: 0.0,
    listen: Callable[[Tcp], AsyncGenerator[str]] | None = None,
) -> Starlette:
    """The app over engines, which the caller starts and closes.

    `metrics` is what the engines were made with. `stop` is called by /stop; `idle` returns the seconds without a
    request; `listen` opens a port, whose address it yields, until it is closed.
    """
    metrics = metrics or Metrics()
    metrics.watch(engines)
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Counted, metrics=metrics)],
        exception_handlers={HTTPException: on_error, LocaldflashError: on_error},
    )
    app.router.redirect_slashes = False
    app.state.shared = AppState(engines, metrics, stop, idle, listen)
    return app


class Counted:
    """ASGI middleware that counts requests by path and status, and turns an unexpected error into a 500 and a log
    line.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except ClientDisconnect:
            pass  # in the middle of its body
        except Exception as error:
            log.error("internal error: %s", _where(error))
            if not status:
                await error_response(error, scope["path"])(scope, receive, counted)
        finally:
            route = scope.get("route")
            self._metrics.answered(route.path if route else "other", status or GONE)


def _where(error: Exception) -> str:
    """The kind of an error and where it arose, without its message, which may hold a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in reversed(frames[-3:]))])
