"""Events of one request over the daemon's Unix socket: h11 on a plain asyncio stream.

A key costs one request, and most are given up before they end; the large HTTP clients take milliseconds for that.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import h11
import msgspec

CHUNK = 65_536  # bytes


class Refused(Exception):
    """The server answered with an error, whose message this is."""


class Timings(TypedDict):
    """How an answer was made; of its times only what is shown."""

    predicted_per_second: NotRequired[float]


class Event(TypedDict):
    """A part of an answer; with `finish` the last one of its index."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    text: str
    confidence: NotRequired[float | None]
    finish: NotRequired[str]
    tokens: NotRequired[int]
    tau: NotRequired[float]
    timings: NotRequired[Timings]


class Connection:
    """One connection, used again as long as its answers are read to their end. OSError: nobody is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._http: h11.Connection | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def events(self, target: str, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """POST; the events of the answer. Whoever stops reading before the end closes the connection."""
        whole = False
        try:
            await self._send("POST", target, json.dumps(body).encode())
            async for line in self._lines():
                if line.startswith(b"data: {"):
                    yield _event(line[6:])
            whole = True
        finally:
            if not whole or self._http is None or self._http.their_state is not h11.DONE:
                self.close()

    async def get(self, target: str) -> Any:
        """GET; the JSON of the answer. Closes the connection."""
        try:
            await self._send("GET", target, b"")
            return json.loads(b"\n".join([line async for line in self._lines()]))
        finally:
            self.close()

    def close(self) -> None:
        """Close it; the next request opens another one."""
        if self._http is not None:
            self._http = None
            self._writer.close()

    async def _send(self, method: str, target: str, body: bytes) -> None:
        if self._http is not None and self._http.our_state is h11.DONE and not self._reader.at_eof():
            self._http.start_next_cycle()
        else:
            self.close()
            self._reader, self._writer = await asyncio.open_unix_connection(self._path)
            self._http = h11.Connection(h11.CLIENT)
        headers = [("Host", "localdflash"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        parts = [h11.Request(method=method, target=target, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))

    async def _lines(self) -> AsyncGenerator[bytes]:
        """The lines of an answer. Refused where its status says so."""
        http, rest, status = self._http, b"", 200
        assert http
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await self._reader.read(CHUNK))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                *lines, rest = (rest + event.data).split(b"\n")
                for line in lines if status < 300 else ():
                    yield line
                if status >= 300:
                    rest = b"\n".join([*lines, rest])
        if status >= 300:
            raise Refused(_message(rest, status))
        yield rest


def _event(data: bytes) -> Event:
    """Refused where it tells of an error, or is no event."""
    try:
        return msgspec.json.decode(data, type=Event)
    except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
        raise Refused(_message(data, 200)) from None


def _message(content: bytes, status: int) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        nonsense = "something that makes no sense" if status < 300 else f"status {status}"
        return f"the engine answered with {nonsense}"
