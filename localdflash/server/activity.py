"""Middleware around every request: idle time, request counts, and unexpected errors."""

import logging
import time
import traceback

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localdflash.server.api.http_responses import error_response
from localdflash.server.api.metrics import Metrics

log = logging.getLogger(__name__)

MONITORING_PATHS = frozenset({"/health", "/v1/health", "/metrics", "/ps", "/slots"})  # do not count as activity
CLIENT_LEFT = 499  # status of a request whose client left; only the metrics show it


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

    def wrap(self, app: ASGIApp) -> ASGIApp:
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
                pass  # counted as `CLIENT_LEFT`
            except Exception as error:
                log.error("internal error: %s", _where(error))
                if not status:
                    await error_response(error, scope["path"])(scope, receive, send_counted)
            finally:
                self._running -= counts
                if counts:
                    self.restart()
                route = scope.get("route")
                self._metrics.count_request(route.path if route else "other", status or CLIENT_LEFT)

        return serve


def _where(error: Exception) -> str:
    """Return the type and source location of an error, without its message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in reversed(frames[-3:]))])
