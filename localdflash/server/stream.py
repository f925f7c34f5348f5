"""Requests to a server on an event loop: h11 on a plain asyncio stream, JSON in, JSON or events out.

A key costs one request, and most are given up before they end; the large HTTP clients take milliseconds for that. What
a server refuses is raised as the error that it tells of (see `refusals`); a connection that breaks, or cannot be made,
is EngineGone.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec

from localdflash.errors import EngineGone, LocaldflashError, UsageError
from localdflash.server.refusals import json_object, refusal

CHUNK = 65_536  # bytes
CONNECT = 5.0  # seconds
KEPT = 30.0  # seconds that an idle connection is used again; less than servers keep it
LARGEST = 16_000_000  # bytes of one line
DONE = b"[DONE]"
LINGER = 0.2  # seconds that a server may take to end an answer after that
Event = TypeVar("Event")
_BROKEN = (OSError, EOFError, h11.RemoteProtocolError)


@dataclass(frozen=True)
class Address:
    """Where a server is: at a Unix socket, or at a port, with TLS or without. `place` is what messages call it."""

    socket: Path | None = None
    host: str = "localdflash"  # a Unix socket has none, but a request names one
    port: int = 80
    tls: bool = False
    base: str = ""  # what stands before every path
    key: str = ""
    place: str = "the engine"

    @classmethod
    def of_url(cls, url: str, key: str = "") -> Self:
        """An OpenAI-compatible server; UsageError where that is no http address. `/v1` at its end is optional."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        sendable = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not sendable:
            raise UsageError(f"{url!r}: not the address of a server, such as http://127.0.0.1:8080")
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        place = url.rstrip("/").removesuffix("/v1")
        return cls(None, parts.hostname, port or (443 if tls else 80), tls, base, key, place)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection. OSError and TimeoutError: nobody is there."""
        if self.socket:
            return await asyncio.open_unix_connection(self.socket)
        async with asyncio.timeout(CONNECT):
            return await asyncio.open_connection(self.host, self.port, ssl=self.tls or None)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Of every request."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        host = name if self.socket or self.port == (443 if self.tls else 80) else f"{name}:{self.port}"
        key = [("Authorization", f"Bearer {self.key}")] if self.key else []
        return [("Host", host), ("Content-Type", "application/json"), *key]


class Connection(Generic[Event]):
    """One connection, used again as long as its answers are read to their end. `decode` reads the data of an event."""

    def __init__(self, address: Address, decode: Callable[[bytes], Event]) -> None:
        self._address, self._decode = address, decode
        self._http: h11.Connection | None = None
        self._used = 0.0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def events(self, target: str, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """POST; the events of the answer. Whoever stops reading before the end closes the connection."""
        async with self._request("POST", target, encode(body)) as lines:
            async for line in lines:
                data = line[5:].strip() if line.startswith(b"data:") else b""
                if data == DONE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LINGER):
                            async for _ in lines:
                                pass
                    return
                if data.startswith(b"{"):
                    yield self._decode(data)

    async def get(self, target: str) -> dict[str, Any]:
        """GET; the JSON of the answer."""
        return await self._json("GET", target, b"")

    async def post(self, target: str, body: Mapping[str, object]) -> dict[str, Any]:
        """POST; the JSON of the answer."""
        return await self._json("POST", target, encode(body))

    async def _json(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        async with self._request(method, target, body) as lines:
            return json_object(b"\n".join([line async for line in lines]))

    def close(self) -> None:
        """Close it at once, whatever is under way; the next request opens another one."""
        if self._http is not None:
            self._http = None
            self._writer.transport.abort()

    @asynccontextmanager
    async def _request(self, method: str, target: str, body: bytes) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """The lines of the answer to a request. The connection stays open if they were read to the end."""
        headers = [*self._address.headers, ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=self._address.base + target, headers=headers)
        try:
            yield self._lines(await self._exchange([request, h11.Data(data=body), h11.EndOfMessage()]))
        except TimeoutError:
            raise EngineGone(f"{self._address.place} does not answer") from None
        except _BROKEN as error:
            told = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            happened = "cannot be reached" if isinstance(error, ConnectionRefusedError) else "went away"
            raise EngineGone(f"{self._address.place} {happened}: {told or type(error).__name__}") from None
        finally:
            self._used = time.monotonic()
            if self._http is None or self._http.their_state is not h11.DONE:
                self.close()

    async def _exchange(self, parts: Sequence[h11.Event]) -> int:
        """Send a request; the status of its answer. A used connection may be closed by now: then over a fresh one."""
        fresh = time.monotonic() - self._used < KEPT
        if fresh and self._http is not None and self._http.our_state is h11.DONE and not self._reader.at_eof():
            self._http.start_next_cycle()
            with suppress(*_BROKEN):
                return await self._send(self._http, parts)
        self.close()
        self._reader, self._writer = await self._address.open()
        self._http = h11.Connection(h11.CLIENT)
        return await self._send(self._http, parts)

    async def _send(self, http: h11.Connection, parts: Sequence[h11.Event]) -> int:
        self._writer.write(b"".join(http.send(part) or b"" for part in parts))
        while not isinstance(event := http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                http.receive_data(await self._reader.read(CHUNK))
        return event.status_code

    async def _lines(self, status: int) -> AsyncGenerator[bytes]:
        """The lines of an answer. The error that it tells of where its status says so."""
        http, parts, size = self._http, list[bytes](), 0
        assert http
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await self._reader.read(CHUNK))
            elif isinstance(event, h11.Data):
                first, *others = bytes(event.data).split(b"\n") if status < 300 else [bytes(event.data)]
                parts.append(first)
                for line in others:
                    yield b"".join(parts)
                    parts, size = [line], 0
                size += len(parts[-1])
                if size > LARGEST:
                    raise LocaldflashError(f"{self._address.place} answered with a line of more than {LARGEST} bytes")
        if status >= 300:
            raise refusal(b"".join(parts), status)
        yield b"".join(parts)


def encode(body: Mapping[str, object]) -> bytes:
    """JSON; half a surrogate pair, which no encoding has, becomes a question mark."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
