"""HTTP/1.1 clients of the daemon and other servers, built on h11: full HTTP libraries add milliseconds per request."""

import json
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import h11
import msgspec

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.base.files import paths
from localdflash.base.system import unix_socket
from localdflash.server.address import Address
from localdflash.server.refusals import Json, error_of_body, error_of_response, json_object
from localdflash.server.sockets import is_listening, resolve_port_file

if TYPE_CHECKING:  # slow to import; only `ClientConnection` needs it
    import asyncio

CHUNK_BYTES = 65_536  # size of one read
CONNECT_SECONDS = 5.0
EVENT_STREAM = b"text/event-stream"
DONE = b"[DONE]"  # data of the last event of a stream
MAX_BYTES = 16_000_000  # size limit of one line of an event stream, or of any other response
CONNECTION_ERRORS = (OSError, EOFError, h11.RemoteProtocolError)  # become EngineDisconnect
REUSE_SECONDS = 30.0  # maximum idle time of a connection to reuse; shorter than servers' keep-alive
LINGER_SECONDS = 0.2  # how long to wait for the end of a response after its last event
Event = TypeVar("Event")


class NoReply(EngineDisconnect):
    """A server did not respond in time (exit code 1)."""


class DaemonHangs(LocaldflashError):
    """The daemon accepts connections, but does not respond in time (exit code 1)."""


class Exchange:
    """HTTP/1.1 protocol state of one connection, without the socket. Unless `tolerant`, an error status is raised."""

    def __init__(self, address: Address, *, tolerant: bool = False) -> None:
        self._address, self._tolerant = address, tolerant
        self._http = h11.Connection(h11.CLIENT)
        self._expects_events = False
        self._refused = b""  # body of an error response
        self._size = 0  # bytes of the response's body so far
        self.status = 0  # status code of the current response; 0 until its head arrives
        self.ended = False  # whether the response is complete

    @property
    def reusable(self) -> bool:
        """Return whether another request can be sent on the connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def request(
        self, method: str, target: str, body: Mapping[str, object] | None = None, *, expects_events: bool = False
    ) -> bytes:
        """Return the bytes of a request; `expects_events`: refuse a response that is no event stream."""
        if self.reusable:
            self._http.start_next_cycle()
        self._expects_events, self.status, self.ended, self._refused, self._size = expects_events, 0, False, b"", 0
        data = b"" if body is None else encode(body)
        headers = [*self._address.headers, ("Content-Length", str(len(data)))]
        head = h11.Request(method=method, target=self._address.path_prefix + target, headers=headers)
        return b"".join(self._http.send(part) or b"" for part in (head, h11.Data(data=data), h11.EndOfMessage()))

    def receive(self, data: bytes) -> bytes:
        """Parse received bytes (empty: the server closed the connection) and return the part of the body in them."""
        self._http.receive_data(data)
        body = b""
        while not self.ended and (event := self._http.next_event()) is not h11.NEED_DATA:
            match event:
                case h11.Response():
                    self._read_head(event)
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    self.ended = True
        return self._check_body(body)

    def _read_head(self, response: h11.Response) -> None:
        self.status = response.status_code
        kind = dict(response.headers).get(b"content-type", b"")
        if self._expects_events and self.status < 300 and not kind.startswith(EVENT_STREAM):
            raise LocaldflashError(
                f"{self._address.display_name}: unexpected reply (expected an event stream); check the server's address"
            )

    def _check_body(self, body: bytes) -> bytes:
        """Return a part of the body; collect the body of an error instead, and raise the error at its end."""
        self._size += len(body)
        if self._size > MAX_BYTES and not self._expects_events:
            raise LocaldflashError(f"{self._address.display_name}: the response is larger than {MAX_BYTES} bytes")
        if self.status < 300 or self._tolerant:
            return body
        self._refused += body
        if self.ended:
            raise error_of_response(self._refused, self.status)
        return b""


class EventParser:
    """Parser of server-sent events; it returns the data of each event."""

    def __init__(self) -> None:
        self._line = b""  # incomplete last line
        self._data: list[bytes] = []  # lines of the incomplete event
        self._after_return = False  # the last piece ended with \r: skip a following \n

    def push(self, piece: bytes) -> Iterator[bytes]:
        """Add a piece of the stream; yield the data of each event that is now complete."""
        for line in self._split_lines(piece):
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                data, self._data = b"\n".join(self._data).strip(), []
                if data:
                    yield data

    def _split_lines(self, piece: bytes) -> list[bytes]:
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        self._after_return = piece.endswith(b"\r")
        *lines, self._line = (self._line + piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(b"\n")
        if len(self._line) > MAX_BYTES:
            raise LocaldflashError(f"the server sent a line of more than {MAX_BYTES} bytes")
        return lines


class Client:
    """Blocking, thread-safe client of a daemon. Closing a stream closes its connection, which cancels the request."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def get(self, target: str) -> Json:
        """Send a GET request and return the JSON object of the response."""
        return json_object(self._request("GET", target))

    def get_text(self, target: str) -> str:
        """Send a GET request and return the text of the response."""
        return self._request("GET", target).decode("utf-8", "replace")

    def post(self, target: str, body: Mapping[str, object]) -> Json:
        """Send a POST request and return the JSON object of the response."""
        return json_object(self._request("POST", target, body))

    def health(self) -> Json:
        """Return the JSON object of GET /health, even if the status is an error."""
        with self._exchange("GET", "/health", timeout=CONNECT_SECONDS, tolerant=True) as pieces:
            return json_object(b"".join(pieces))

    def stream(self, target: str, body: Mapping[str, object]) -> Generator[Json, None, None]:
        """Send a POST request and yield its events; EngineDisconnect if the connection closes before the last event."""
        events = EventParser()
        with self._exchange("POST", target, body, expects_events=True) as pieces:
            for piece in pieces:
                for data in events.push(piece):
                    if data == DONE:
                        return
                    yield (event := _decode_event(data))
                    if event.get("stop") is True:  # the last event of /infill
                        return
        raise EngineDisconnect(f"{self.address.display_name} closed the connection during an answer")

    def _request(self, method: str, target: str, body: Mapping[str, object] | None = None) -> bytes:
        with self._exchange(method, target, body) as pieces:
            return b"".join(pieces)

    @contextmanager
    def _exchange(
        self,
        method: str,
        target: str,
        body: Mapping[str, object] | None = None,
        *,
        expects_events: bool = False,
        tolerant: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """Send a request and yield an iterator over the response's body; `timeout` limits each read, in seconds."""
        with convert_connection_errors(self.address.display_name):
            address = resolve_port_file(self.address)
            http = Exchange(address, tolerant=tolerant)
            request = http.request(method, target, body, expects_events=expects_events)
            with _connect(address) as connection:
                connection.settimeout(timeout)
                connection.sendall(request)
                yield _read_pieces(connection, http)


class ClientConnection(Generic[Event]):
    """Asynchronous client. A connection is reused if its response was read to the end; `decode` decodes an event."""

    def __init__(self, address: Address, decode: Callable[[bytes], Event], *, tolerant: bool = False) -> None:
        self._address, self._decode, self._tolerant = address, decode, tolerant
        self._http: Exchange | None = None
        self._last_used = 0.0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def events(self, target: str, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """Send a POST request and yield its events. Closing the generator early closes the connection."""
        events = EventParser()
        async with self._exchange("POST", target, body, events=True) as (http, first):
            piece = first
            while True:
                for data in events.push(piece):
                    if data == DONE:
                        await self._read_to_end(http)
                        return
                    yield self._decode(data)
                if http.ended:
                    return
                piece = await self._receive(http)

    async def get(self, target: str) -> dict[str, Any]:
        """Send a GET request and return the JSON object of the response."""
        return await self._request_json("GET", target)

    async def post(self, target: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a POST request and return the JSON object of the response."""
        return await self._request_json("POST", target, body)

    async def _request_json(self, method: str, target: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        return json_object((await self.request(method, target, body))[1])

    async def request(self, method: str, target: str, body: Mapping[str, object] | None = None) -> tuple[int, bytes]:
        """Send a request and return the status and the body of the response."""
        async with self._exchange(method, target, body) as (http, first):
            parts = [first]
            while not http.ended:
                parts.append(await self._receive(http))
        return http.status, b"".join(parts)

    def close(self) -> None:
        """Close the connection at once, even during a request; the next request opens a new connection."""
        if self._http is not None:
            self._http = None
            self._writer.transport.abort()

    @asynccontextmanager
    async def _exchange(
        self, method: str, target: str, body: Mapping[str, object] | None, *, events: bool = False
    ) -> AsyncGenerator[tuple[Exchange, bytes]]:
        """Send a request; yield the `Exchange` and the first bytes of the body. Close unless the response was read."""
        try:
            with convert_connection_errors(self._address.display_name):
                yield await self._send_request(lambda http: http.request(method, target, body, expects_events=events))
        finally:
            self._last_used = time.monotonic()
            if self._http is None or not self._http.ended:
                self.close()

    async def _send_request(self, request: Callable[[Exchange], bytes]) -> tuple[Exchange, bytes]:
        """Send the request that `request` makes, over the open connection if it still works, else over a new one."""
        is_fresh = time.monotonic() - self._last_used < REUSE_SECONDS
        if is_fresh and self._http is not None and self._http.reusable and not self._reader.at_eof():
            with suppress(*CONNECTION_ERRORS):
                return await self._send(self._http, request(self._http))
        self.close()
        address = resolve_port_file(self._address)
        self._reader, self._writer = await _open(address)
        self._http = Exchange(address, tolerant=self._tolerant)
        return await self._send(self._http, request(self._http))

    async def _send(self, http: Exchange, request: bytes) -> tuple[Exchange, bytes]:
        self._writer.write(request)
        piece = b""
        while not http.status:
            piece = await self._receive(http)
        return http, piece

    async def _receive(self, http: Exchange) -> bytes:
        return http.receive(await self._reader.read(CHUNK_BYTES))

    async def _read_to_end(self, http: Exchange) -> None:
        """Read the end of the response after its last event, so that the connection can be reused."""
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not http.ended:
                    await self._receive(http)


def find_daemon() -> Client | None:
    """Return a client of the running daemon, which may be loading or about to exit; None if there is none.

    DaemonHangs if the daemon does not respond.
    """
    path = paths.daemon_socket()
    try:
        paths.check_private(path.parent)
    except FileNotFoundError:
        return None
    if not is_listening(path):
        return None
    client = Client(Address(path))
    try:
        client.health()
    except NoReply:
        raise DaemonHangs(f"the daemon{_describe_process(path)} does not respond; kill its process") from None
    except EngineDisconnect:
        return None
    return client


def _describe_process(path: Path) -> str:
    """Return " (process N)" with the id of the process that listens at a Unix socket; "" if that is not known."""
    with suppress(OSError), unix_socket.connect(path, CONNECT_SECONDS) as connection:
        return f" (process {unix_socket.peer_pid(connection)})"
    return ""


def _read_pieces(connection: socket.socket, http: Exchange) -> Iterator[bytes]:
    while not http.ended:
        yield http.receive(connection.recv(CHUNK_BYTES))


def _connect(address: Address) -> socket.socket:
    """Return a connected socket; `address` has no port file, see `resolve_port_file`."""
    if address.socket:
        return unix_socket.connect(address.socket, CONNECT_SECONDS)
    return socket.create_connection((address.host, address.port), CONNECT_SECONDS)


def _decode_event(data: bytes) -> Json:
    """Decode an event; raise the error that it reports."""
    event = json_object(data)
    if "error" in event:
        raise error_of_body(event, 500)
    return event


async def _open(address: Address) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
    import asyncio

    if address.socket:
        return await unix_socket.open_connection(address.socket)
    async with asyncio.timeout(CONNECT_SECONDS):
        return await asyncio.open_connection(address.host, address.port, ssl=address.tls or None)


@contextmanager
def convert_connection_errors(server: str) -> Iterator[None]:
    """Convert connection errors to EngineDisconnect. `server`: its name for the message."""
    try:
        yield
    except TimeoutError:
        raise NoReply(f"{server} does not respond") from None
    except CONNECTION_ERRORS as error:
        problem = "cannot be reached" if isinstance(error, ConnectionRefusedError) else "went away"
        raise EngineDisconnect(f"{server} {problem}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Describe an error in one line, without the error numbers and addresses that asyncio adds."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def encode(body: Mapping[str, object]) -> bytes:
    """Encode a body as JSON; a lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
