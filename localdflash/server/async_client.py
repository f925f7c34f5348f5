"""Requests to a server on an event loop: JSON in, JSON or events out.

A key costs one request, and most are given up before they end; the large HTTP clients take milliseconds for that.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

from localdflash.base.system import unix_socket
from localdflash.server.address import Address
from localdflash.server.exchange import BROKEN, CHUNK, CONNECT, DONE, Events, Exchange, broken
from localdflash.server.refusals import json_object
from localdflash.server.sockets import located

KEPT = 30.0  # seconds that an idle connection is used again; less than servers keep it
LINGER = 0.2  # seconds that a server may take to end an answer after its last event
Event = TypeVar("Event")


class Connection(Generic[Event]):
    """One connection, reused as long as its answers are read to their end.

    `decode` reads the data of an event, and `events` tells one event from the next. `tolerant`: see `Exchange`.
    """

    def __init__(
        self,
        address: Address,
        decode: Callable[[bytes], Event],
        events: type[Events] = Events,
        *,
        tolerant: bool = False,
    ) -> None:
        self._address, self._decode, self._splitter, self._tolerant = address, decode, events, tolerant
        self._http: Exchange | None = None
        self._used = 0.0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def events(self, target: str, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """POST, and yield the events of the answer. Whoever stops reading before the end closes the connection."""
        events = self._splitter()
        async with self._asked("POST", target, body, streams=True) as (http, first):
            piece = first
            while True:
                for data in events.push(piece):
                    if data == DONE:
                        await self._read_out(http)
                        return
                    yield self._decode(data)
                if http.ended:
                    return
                piece = await self._more(http)

    async def get(self, target: str) -> dict[str, Any]:
        """GET, and return JSON."""
        return await self._json("GET", target)

    async def post(self, target: str, body: Mapping[str, object]) -> dict[str, Any]:
        """POST, and return JSON."""
        return await self._json("POST", target, body)

    async def _json(self, method: str, target: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        return json_object((await self.answer(method, target, body))[1])

    async def answer(self, method: str, target: str, body: Mapping[str, object] | None = None) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        async with self._asked(method, target, body) as (http, first):
            parts = [first]
            while not http.ended:
                parts.append(await self._more(http))
        return http.status, b"".join(parts)

    def close(self) -> None:
        """Close the connection at once, whatever is under way; the next request opens another one."""
        if self._http is not None:
            self._http = None
            self._writer.transport.abort()

    @asynccontextmanager
    async def _asked(
        self, method: str, target: str, body: Mapping[str, object] | None, *, streams: bool = False
    ) -> AsyncGenerator[tuple[Exchange, bytes]]:
        """The answer to a request, and what came with its beginning. The connection stays open if it is read to the
        end.
        """
        try:
            with broken(self._address.place):
                yield await self._answered(lambda http: http.request(method, target, body, streams=streams))
        finally:
            self._used = time.monotonic()
            if self._http is None or not self._http.ended:
                self.close()

    async def _answered(self, request: Callable[[Exchange], bytes]) -> tuple[Exchange, bytes]:
        """Send a request. A reused connection may have been closed; then a new one is opened."""
        fresh = time.monotonic() - self._used < KEPT
        if fresh and self._http is not None and self._http.reusable and not self._reader.at_eof():
            with suppress(*BROKEN):
                return await self._send(self._http, request(self._http))
        self.close()
        address = located(self._address)
        self._reader, self._writer = await _open(address)
        self._http = Exchange(address, tolerant=self._tolerant, stream=self._splitter.kind)
        return await self._send(self._http, request(self._http))

    async def _send(self, http: Exchange, request: bytes) -> tuple[Exchange, bytes]:
        self._writer.write(request)
        piece = b""
        while not http.status:
            piece = await self._more(http)
        return http, piece

    async def _more(self, http: Exchange) -> bytes:
        return http.receive(await self._reader.read(CHUNK))

    async def _read_out(self, http: Exchange) -> None:
        """Read the end that follows the last event, so that the connection can be reused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while not http.ended:
                    await self._more(http)


async def _open(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.socket:
        return await unix_socket.opened(address.socket)
    async with asyncio.timeout(CONNECT):
        return await asyncio.open_connection(address.host, address.port, ssl=address.tls or None)
