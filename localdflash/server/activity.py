"""Middleware around every request: measures idle time, counts requests, and handles unexpected errors."""

import asyncio
import logging
import time
import traceback

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localdflash.server.api.http_responses import error_response
from localdflash.server.api.metrics import Metrics

log = logging.getLogger(__name__)

# Requests that are not counted as activity.
MONITORING_PATHS = frozenset({"/health", "/v1/health", "/metrics", "/models", "/models/sse", "/ps", "/slots"})
CLIENT_LEFT = 499  # status in the metrics of a request whose client disconnected


class Activity:
    """ASGI middleware that counts requests, measures idle time, and turns an unexpected error into status 500."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._running = metrics, 0
        self.restart()

    def restart(self) -> None:
        """Reset the idle time; called after a load, so that loading does not count as idle time."""
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
            is_counted = scope["path"] not in MONITORING_PATHS
            self._running += is_counted
            try:
                await app(scope, receive, send_counted)
            except ClientDisconnect:
                pass  # the metrics get `CLIENT_LEFT`
            except asyncio.CancelledError as error:  # the port closes
                if not status:
                    await error_response(error, scope["path"])(scope, receive, send_counted)
            except Exception as error:
                log.error("internal error: %s", _describe_location(error))
                if not status:
                    await error_response(error, scope["path"])(scope, receive, send_counted)
            finally:
                self._running -= is_counted
                if is_counted:
                    self.restart()
                route = scope.get("route")
                self._metrics.count_request(route.path if route else "other", status or CLIENT_LEFT)

        return serve


def _describe_location(error: Exception) -> str:
    """Return the type and source location of an error, without its message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.filename}:{f.lineno}" for f in reversed(frames[-3:]))])
