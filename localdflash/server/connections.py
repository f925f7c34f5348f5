"""Limits on connections that wait for a request, so that file descriptors stay free: timeouts, and a maximum."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from localdflash.server.sockets import BACKLOG

WAIT_SECONDS = 10.0  # timeout for a request to arrive
REPORT_SECONDS = 60.0  # minimum interval of reports that no descriptor is left
MAX_PIPELINED_BYTES = 65_536  # read from a client while its previous request is being answered
MAX_DESCRIPTORS = 4096  # requested limit of open file descriptors


class ServerConnection(H11Protocol):
    """HTTP connection with timeouts for its first request, for a started request head, and for each part of a body.

    If too many connections wait for a request, the connections that have waited longest are closed.
    """

    # Limit per listener, above the kernel's accept queue: a burst of clients closes none that is about to send.
    max_waiting = 4 * BACKLOG
    waiting_since = 0.0  # 0: a request is being answered, or the connection was closed
    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._start_waiting()
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if self._is_answering:
            self.waiting_since = 0.0
            self._start_timeout(restart=True)
            if not self.cycle.more_body and len(self.conn.trailing_data[0]) < MAX_PIPELINED_BYTES:
                self.flow.resume_reading()  # uvicorn stops reading, and would not notice that the client disconnects
        elif not self._timeout:  # the request head is incomplete
            self._start_timeout()

    def on_response_complete(self) -> None:
        """Start waiting for the next request on this connection."""
        super().on_response_complete()
        if self._is_answering or self.transport.is_closing():
            return
        self._start_waiting()
        if self.conn.their_state is h11.SEND_BODY:  # the request was refused early; the rest of its body is discarded
            self._start_timeout(restart=True)

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, and drop the app's response; if that has begun, close the connection."""
        if self.cycle:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.waiting_since = 0.0
        self._cancel_timeout()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once."""
        self.waiting_since = 0.0
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_waiting(self) -> None:
        """Mark the connection as waiting; if too many connections wait, close those that have waited longest."""
        self._cancel_timeout()
        self.waiting_since = time.monotonic()
        for one in waiting_connections(self.connections)[: -self.max_waiting]:
            one.drop()

    def _start_timeout(self, restart: bool = False) -> None:
        """Start the timeout for a request head, or for the next part of a body; a complete request has no timeout."""
        if restart:
            self._cancel_timeout()
        if not (self._is_answering and not self.cycle.more_body):
            self._timeout = self.loop.call_later(WAIT_SECONDS, self._on_timeout)

    def _on_timeout(self) -> None:
        """Close the connection, unless nothing arrived because the server itself paused reading."""
        if self._is_answering and self.flow.read_paused:
            self._start_timeout(restart=True)
        else:
            self.drop()

    def _cancel_timeout(self) -> None:
        if self._timeout:
            self._timeout.cancel()
            self._timeout = None


def waiting_connections(connections: Collection[Any]) -> list[ServerConnection]:
    """Return the connections that wait for a request, longest wait first."""
    return sorted((one for one in connections if one.waiting_since), key=lambda one: one.waiting_since)


class DescriptorExhaustionHandler:
    """asyncio exception handler. If no file descriptor is left, call `make_room`, and `say` at most once a minute."""

    def __init__(self, make_room: Callable[[], None], say: Callable[[str], None]) -> None:
        self._make_room, self._say, self._reported_at = make_room, say, -REPORT_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception. asyncio itself accepts connections again after a second."""
        if "out of system resource" not in context.get("message", ""):
            loop.default_exception_handler(context)
            return
        self._make_room()
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self._say(f"cannot accept connections ({context.get('exception')}); closed waiting connections")
