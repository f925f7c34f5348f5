"""The daemon's HTTP app: the handler of each path, and the middleware around every request."""

import logging
import time
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
    anthropic_api,
    complete_endpoint,
    control,
    llama_server_api,
    openai_api,
    responses_api,
)
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_errors import error_response, on_error
from localdflash.server.api.http_responses import GONE
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import Engines
from localdflash.server.tcp import TcpPort

log = logging.getLogger(__name__)

# Requests that only look: an engine that nobody else uses becomes idle.
MONITORING_PATHS = frozenset({"/health", "/v1/health", "/metrics", "/ps", "/slots"})
EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/embedding")
ROUTES = [
    Route("/v1/models", control.models, methods=["GET"]),
    Route("/v1/models/{model:path}", control.model, methods=["GET"]),
    Route("/v1/chat/completions", openai_api.chat, methods=["POST"]),
    Route("/v1/completions", openai_api.completions, methods=["POST"]),
    Route("/v1/responses", responses_api.responses, methods=["POST"]),
    Route("/v1/messages", anthropic_api.messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", anthropic_api.count_tokens, methods=["POST"]),
    Route("/complete", complete_endpoint.complete, methods=["POST"]),
    Route("/infill", llama_server_api.infill, methods=["POST"]),
    Route("/completion", llama_server_api.completion, methods=["POST"]),
    Route("/tokenize", llama_server_api.tokenize, methods=["POST"]),
    Route("/detokenize", llama_server_api.detokenize, methods=["POST"]),
    Route("/apply-template", openai_api.apply_template, methods=["POST"]),
    Route("/props", llama_server_api.props, methods=["GET"]),
    Route("/slots", llama_server_api.slots, methods=["GET"]),
    Route("/health", control.health, methods=["GET"]),
    Route("/v1/health", control.health, methods=["GET"]),
    Route("/metrics", control.metrics, methods=["GET"]),
    *(Route(path, openai_api.embeddings, methods=["POST"]) for path in EMBEDDINGS),
    Route("/ps", control.ps, methods=["GET"]),
    Route("/listen", control.listen, methods=["POST"]),
    Route("/load", control.load, methods=["POST"]),
    Route("/stop", control.stop, methods=["POST"]),
]


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
            if scope["type"] != "http":
                await app(scope, receive, send)
            elif scope["path"] in MONITORING_PATHS:
                await self._serve(app, scope, receive, send)
            else:
                self._running += 1
                try:
                    await self._serve(app, scope, receive, send)
                finally:
                    self._running -= 1
                    self.restart()

        return serve

    async def _serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, send_counted)
        except ClientDisconnect:
            pass  # in the middle of its body
        except Exception as error:
            log.error("internal error: %s", _where(error))
            if not status:
                await error_response(error, scope["path"])(scope, receive, send_counted)
        finally:
            route = scope.get("route")
            self._metrics.answered(route.path if route else "other", status or GONE)


def create_app(
    engines: Engines,
    metrics: Metrics | None = None,
    *,
    activity: Activity | None = None,
    stop: Callable[[], None] | None = None,
    listen: Callable[[TcpPort], AsyncGenerator[str]] | None = None,
) -> Starlette:
    """Create the HTTP app of `engines`; the caller starts and closes the engines.

    `metrics` holds the counters of the engines and of `activity`. /stop calls `stop`. /listen iterates over `listen`,
    which opens a port, yields its URL and closes the port with the generator.
    """
    metrics = metrics or Metrics()
    activity = activity or Activity(metrics)
    metrics.watch(engines)
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(activity.around)],
        exception_handlers={HTTPException: on_error, LocaldflashError: on_error},
    )
    app.router.redirect_slashes = False
    app.state.shared = AppState(engines, metrics, lambda: activity.idle_seconds, stop, listen)
    return app


def _where(error: Exception) -> str:
    """Return the type and source location of an error, without its message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in reversed(frames[-3:]))])
