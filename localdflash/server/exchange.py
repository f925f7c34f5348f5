"""HTTP/1.1 without a socket (h11): makes the bytes of requests, and reads answers from the bytes that came.

Whoever has a connection carries the bytes: `stream` on an event loop, `client` blocking. What a server refuses is
raised as the error that it reports (see `refusals`); a connection that breaks, or cannot be made, is EngineGone.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import h11
import msgspec

from localdflash.base.errors import EngineGone, LocaldflashError
from localdflash.server.address import Address
from localdflash.server.refusals import refusal

CHUNK = 65_536  # bytes to read at once
CONNECT = 5.0  # seconds
DONE = b"[DONE]"  # the data of the last event
LARGEST = 16_000_000  # bytes of one line of events, or of any other answer
BROKEN = (OSError, EOFError, h11.RemoteProtocolError)


class Exchange:
    """The requests of one connection, each answer read to its end before the next. `tolerant`: no status is an
    error. `stream` is the media type of a stream.
    """

    def __init__(self, address: Address, *, tolerant: bool = False, stream: bytes = b"text/event-stream") -> None:
        self._address, self._tolerant, self._stream = address, tolerant, stream
        self._http = h11.Connection(h11.CLIENT)
        self._streams = False
        self._refused = b""
        self._size = 0
        self.status = 0  # of the answer under way, as soon as that is known
        self.ended = False

    @property
    def reusable(self) -> bool:
        """Whether another request may go over the connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def request(
        self, method: str, target: str, body: Mapping[str, object] | None = None, *, streams: bool = False
    ) -> bytes:
        """The bytes of a request, whose answer is a stream of events if it `streams`."""
        if self.reusable:
            self._http.start_next_cycle()
        self._streams, self.status, self.ended, self._refused, self._size = streams, 0, False, b"", 0
        data = b"" if body is None else encode(body)
        headers = [*self._address.headers, ("Content-Length", str(len(data)))]
        head = h11.Request(method=method, target=self._address.base + target, headers=headers)
        return b"".join(self._http.send(part) or b"" for part in (head, h11.Data(data=data), h11.EndOfMessage()))

    def receive(self, data: bytes) -> bytes:
        """The part of the answer's body in these bytes; no bytes at all are the end of the connection."""
        self._http.receive_data(data)
        body = b""
        while not self.ended and (event := self._http.next_event()) is not h11.NEED_DATA:
            match event:
                case h11.Response():
                    self._begin(event)
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    self.ended = True
        return self._checked(body)

    def _begin(self, answer: h11.Response) -> None:
        self.status = answer.status_code
        kind = dict(answer.headers).get(b"content-type", b"")
        if self._streams and self.status < 300 and not kind.startswith(self._stream):
            raise LocaldflashError(f"{self._address.place}: not a stream of events: is this its address?")

    def _checked(self, body: bytes) -> bytes:
        self._size += len(body)
        if self._size > LARGEST and not self._streams:
            raise LocaldflashError(f"{self._address.place} answered with more than {LARGEST} bytes")
        if self.status < 300 or self._tolerant:
            return body
        self._refused += body
        if self.ended:
            raise refusal(self._refused, self.status)
        return b""


class Events:
    """Splits a body that comes in pieces into the data of server-sent events."""

    kind = b"text/event-stream"

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the parts of one that is not complete
        self._size = 0  # of these
        self._data: list[bytes] = []  # the lines of an event that is not complete
        self._returned = False  # the last piece ended with a carriage return: a line feed would belong to it

    def push(self, piece: bytes) -> Iterator[bytes]:
        """The events that this piece completes."""
        for line in self._lines(piece):
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                data, self._data = b"\n".join(self._data).strip(), []
                if data:
                    yield data

    def _lines(self, piece: bytes) -> Iterator[bytes]:
        if self._returned:
            piece = piece.removeprefix(b"\n")
        self._returned = piece.endswith(b"\r")
        first, *others = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._grow(first)
        for other in others:
            line, self._line, self._size = b"".join(self._line), [], 0
            self._grow(other)
            yield line

    def _grow(self, part: bytes) -> None:
        self._line.append(part)
        self._size += len(part)
        if self._size > LARGEST:
            raise LocaldflashError(f"the server answered with a line of more than {LARGEST} bytes")


@contextmanager
def broken(place: str) -> Iterator[None]:
    """A context that turns whatever breaks a connection into EngineGone."""
    try:
        yield
    except TimeoutError:
        raise EngineGone(f"{place} does not answer") from None
    except BROKEN as error:
        happened = "cannot be reached" if isinstance(error, ConnectionRefusedError) else "went away"
        raise EngineGone(f"{place} {happened}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """An error in one line, without the numbers and addresses that asyncio puts into its own."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def encode(body: Mapping[str, object]) -> bytes:
    """A value as JSON; half a surrogate pair, which no encoding has, becomes a question mark."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
