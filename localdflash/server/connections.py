"""Limits on waiting connections: a timeout for request heads and body chunks, and a maximum number per listener.

Any program can open connections and send nothing. Without a free descriptor the daemon cannot accept the user's editor.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

WAIT_SECONDS = 10.0
REPORT_SECONDS = 60.0  # minimum interval of lines about missing descriptors
MAX_DESCRIPTORS = 4096  # requested limit of open file descriptors


class ServerConnection(H11Protocol):
    """HTTP connection with a timeout while it waits for a request; the oldest waiting connections are dropped first."""

    most = 64  # maximum of waiting connections per listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._limit: asyncio.TimerHandle | None = None
        self.waiting_since = 0.0
        self._wait()
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if self._answers:
            self.waiting_since = 0.0
            self._be_patient(anew=True)
        elif not self._limit:  # the request head is incomplete
            self._be_patient()

    def on_response_complete(self) -> None:
        """Start waiting for the next request on this connection."""
        super().on_response_complete()
        if self._answers or self.transport.is_closing():
            return
        self._wait()
        if self.conn.their_state is h11.SEND_BODY:  # the request was refused before its body was read
            self._be_patient(anew=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.waiting_since = 0.0
        self._forget_limit()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once."""
        self.waiting_since = 0.0
        self.transport.abort()

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """Mark the connection as waiting; drop the longest waiting connection if there are too many."""
        self._forget_limit()
        self.waiting_since = time.monotonic()
        for one in waiting(self.connections)[: -self.most]:
            one.drop()

    def _be_patient(self, anew: bool = False) -> None:
        """Start the timeout for the next bytes of the request; a complete request has no timeout."""
        if anew:
            self._forget_limit()
        if not (self._answers and not self.cycle.more_body):
            self._limit = self.loop.call_later(WAIT_SECONDS, self._run_out)

    def _run_out(self) -> None:
        """Close the connection after the timeout, unless the server itself paused reading."""
        if self._answers and self.flow.read_paused:
            self._be_patient(anew=True)
        else:
            self.drop()

    def _forget_limit(self) -> None:
        if self._limit:
            self._limit.cancel()
            self._limit = None


def waiting(connections: Collection[Any]) -> list[ServerConnection]:
    """Return the waiting connections, the longest waiting first."""
    return sorted((one for one in connections if one.waiting_since), key=lambda one: one.waiting_since)


class OutOfDescriptors:
    """asyncio exception handler that calls `make_room` and prints a rate-limited line if no descriptor is left."""

    def __init__(self, make_room: Callable[[], None], say: Callable[[str], None]) -> None:
        self._make_room, self._say, self._told = make_room, say, -REPORT_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an asyncio exception; asyncio retries accept after a second."""
        if "out of system resource" not in context.get("message", ""):
            loop.default_exception_handler(context)
            return
        self._make_room()
        if time.monotonic() - self._told >= REPORT_SECONDS:
            self._told = time.monotonic()
            self._say(f"out of file descriptors ({context.get('exception')}); closed idle connections")
