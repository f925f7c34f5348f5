"""Connections that only wait: for a request's head in all, and for each piece of its body, only so long; only so many.

Whoever reaches a port may connect and say nothing, or a byte a minute, long before a key is asked for. Every connection
takes a descriptor, and without one nobody is let in, the user's own editor included.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

WAIT_SECONDS = 10.0  # seconds
REPORT_SECONDS = 60.0  # seconds between two lines about descriptors that ran out
MAX_DESCRIPTORS = 4096  # that the process may have open, where the system lets it


class ServerConnection(H11Protocol):
    """HTTP on one connection. It waits while no request of it is answered; of those that wait, the oldest make way."""

    most = 64  # that wait at one listener

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
        elif not self._limit:  # a head that has begun
            self._be_patient()

    def on_response_complete(self) -> None:
        """See uvicorn, which keeps the connection for the next request."""
        super().on_response_complete()
        if self._answers or self.transport.is_closing():
            return
        self._wait()
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was refused before it was read
            self._be_patient(anew=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.waiting_since = 0.0
        self._forget_limit()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close it at once."""
        self.waiting_since = 0.0
        self.transport.abort()

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """Take note that it waits; whoever does so for longest leaves if there are too many."""
        self._forget_limit()
        self.waiting_since = time.monotonic()
        for one in waiting(self.connections)[: -self.most]:
            one.drop()

    def _be_patient(self, anew: bool = False) -> None:
        """Close the connection unless what it waits for comes in time; a request that is whole waits for nothing."""
        if anew:
            self._forget_limit()
        if not (self._answers and not self.cycle.more_body):
            self._limit = self.loop.call_later(WAIT_SECONDS, self._run_out)

    def _run_out(self) -> None:
        """Give up, unless it is we who read no further."""
        if self._answers and self.flow.read_paused:
            self._be_patient(anew=True)
        else:
            self.drop()

    def _forget_limit(self) -> None:
        if self._limit:
            self._limit.cancel()
            self._limit = None


def waiting(connections: Collection[Any]) -> list[ServerConnection]:
    """Those that wait, the one that has done so for longest first."""
    return sorted((one for one in connections if one.waiting_since), key=lambda one: one.waiting_since)


class OutOfDescriptors:
    """Handles what asyncio reports: where descriptors ran out, `make_room` is called and one line told now and then."""

    def __init__(self, make_room: Callable[[], None], say: Callable[[str], None]) -> None:
        self._make_room, self._say, self._told = make_room, say, -REPORT_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See asyncio's exception handlers; it tries to accept again after a second."""
        if "out of system resource" not in context.get("message", ""):
            loop.default_exception_handler(context)
            return
        self._make_room()
        if time.monotonic() - self._told >= REPORT_SECONDS:
            self._told = time.monotonic()
            self._say(f"no descriptor is left for a connection ({context.get('exception')}): others were closed")
