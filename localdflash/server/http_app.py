"""The daemon's HTTP app: the handler of each path, and the middleware around every request."""

import logging
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import get_type_hints

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localdflash.base.errors import LocaldflashError
from localdflash.server.api import (
    anthropic_api,
    complete_endpoint,
    control,
    llama_server_api,
    openai_api,
    responses_api,
)
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_responses import error_response, on_error
from localdflash.server.api.metrics import Metrics
from localdflash.server.api.request_body import read
from localdflash.server.engines import Engines
from localdflash.server.tcp import TcpPort

log = logging.getLogger(__name__)

# Requests that only look: an engine that nobody else uses becomes idle.
MONITORING_PATHS = frozenset({"/health", "/v1/health", "/metrics", "/ps", "/slots"})
GONE = 499  # the status of a request whose client left, which only the metrics show
ROUTES: dict[str, dict[str, Callable[..., Awaitable[Response]]]] = {
    "GET": {
        "/v1/models": control.models,
        "/v1/models/{model:path}": control.model,
        "/props": llama_server_api.props,
        "/slots": llama_server_api.slots,
        "/health": control.health,
        "/v1/health": control.health,
        "/metrics": control.metrics,
        "/ps": control.ps,
    },
    "POST": {
        "/v1/chat/completions": openai_api.chat,
        "/v1/completions": openai_api.completions,
        "/v1/responses": responses_api.responses,
        "/v1/messages": anthropic_api.messages,
        "/v1/messages/count_tokens": anthropic_api.count_tokens,
        "/complete": complete_endpoint.complete,
        "/infill": llama_server_api.infill,
        "/completion": llama_server_api.completion,
        "/tokenize": llama_server_api.tokenize,
        "/detokenize": llama_server_api.detokenize,
        "/apply-template": openai_api.apply_template,
        "/v1/embeddings": openai_api.embeddings,
        "/embeddings": openai_api.embeddings,
        "/embedding": openai_api.embeddings,
        "/listen": control.listen,
        "/load": control.load,
        "/stop": control.stop,
    },
}


def _endpoint(handler: Callable[..., Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler as an endpoint; a parameter `body` gets the request's body, read as the type it is annotated."""
    body_type = get_type_hints(handler).get("body")

    async def endpoint(http: Request) -> Response:
        body = {"body": await read(http, body_type)} if body_type else {}
        return await handler(http, http.app.state.shared, **body)

    return endpoint


class Activity:
    """ASGI middleware that counts requests, measures idle time, and turns an unexpected error into status 500."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._running = metrics, 0
        self.restart()

    def restart(self) -> None:
        """Reset the idle time, so that loading time does not count as idle."""
        self._last = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Return the seconds since the last request ended; 0 while a request is running."""
        return 0.0 if self._running else time.monotonic() - self._last

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return `app` wrapped in this middleware."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            status = 0

            async def send_counted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            counts = scope["path"] not in MONITORING_PATHS
            self._running += counts
            try:
                await app(scope, receive, send_counted)
            except ClientDisconnect:
                pass  # counted as `GONE`
            except Exception as error:
                log.error("internal error: %s", _where(error))
                if not status:
                    await error_response(error, scope["path"])(scope, receive, send_counted)
            finally:
                self._running -= counts
                if counts:
                    self.restart()
                route = scope.get("route")
                self._metrics.answered(route.path if route else "other", status or GONE)

        return serve


def create_app(
    engines: Engines,
    metrics: Metrics | None = None,
    *,
    stop: Callable[[], None] | None = None,
    listen: Callable[[TcpPort], AsyncGenerator[str]] | None = None,
) -> Starlette:
    """Create the HTTP app of `engines`. /stop calls `stop`; /listen iterates over `listen`, which yields a URL."""
    metrics = metrics or Metrics()
    activity = Activity(metrics)
    metrics.watch(engines)
    app = Starlette(
        routes=[
            Route(path, _endpoint(handler), methods=[method])
            for method, handlers in ROUTES.items()
            for path, handler in handlers.items()
        ],
        middleware=[Middleware(activity.around)],
        exception_handlers={HTTPException: on_error, LocaldflashError: on_error},
    )
    app.router.redirect_slashes = False
    app.state.shared = AppState(engines, metrics, activity, stop, listen)
    return app


def _where(error: Exception) -> str:
    """Return the type and source location of an error, without its message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in reversed(frames[-3:]))])
