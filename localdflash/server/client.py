"""Blocking requests to the daemon, or to any other OpenAI-compatible server, for commands: JSON in, JSON out.

What the server refuses is raised as the error that the engine would have raised in this process, exit code included.
Each request has a connection of its own: closing a stream closes it, which cancels the request.
"""

import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager

from localdflash.base.errors import EngineGone
from localdflash.base.files import paths
from localdflash.base.system import unix_socket
from localdflash.server.address import Address
from localdflash.server.exchange import CHUNK, CONNECT, DONE, Events, Exchange, broken
from localdflash.server.refusals import Json, error_of, json_object
from localdflash.server.sockets import is_listening, located


class Client:
    """A client of one server; any number of threads may use it at once."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def get(self, target: str) -> Json:
        """GET, and return JSON."""
        return json_object(self._body("GET", target))

    def get_text(self, target: str) -> str:
        """GET something other than JSON."""
        return self._body("GET", target).decode("utf-8", "replace")

    def post(self, target: str, body: Mapping[str, object]) -> Json:
        """POST, and return JSON."""
        return json_object(self._body("POST", target, body))

    def health(self) -> Json:
        """The answer of /health, whatever its status."""
        with self._asked("GET", "/health", timeout=CONNECT, tolerant=True) as pieces:
            return json_object(b"".join(pieces))

    def stream(self, target: str, body: Mapping[str, object]) -> Generator[Json, None, None]:
        """POST, and yield the events of the answer; EngineGone if it breaks off."""
        events = Events()
        with self._asked("POST", target, body, streams=True) as pieces:
            for piece in pieces:
                for data in events.push(piece):
                    if data == DONE:
                        return
                    yield (event := _checked(data))
                    if event.get("stop") is True:  # how /infill ends
                        return
        raise EngineGone(f"{self.address.place} went away in the middle of an answer")

    def _body(self, method: str, target: str, body: Mapping[str, object] | None = None) -> bytes:
        with self._asked(method, target, body) as pieces:
            return b"".join(pieces)

    @contextmanager
    def _asked(
        self,
        method: str,
        target: str,
        body: Mapping[str, object] | None = None,
        *,
        streams: bool = False,
        tolerant: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """The pieces of an answer's body; `timeout`: the seconds that each may take. The rest: see `Exchange`."""
        with broken(self.address.place):
            address = located(self.address)
            http = Exchange(address, tolerant=tolerant)
            request = http.request(method, target, body, streams=streams)
            with _connected(address) as connection:
                connection.settimeout(timeout)
                connection.sendall(request)
                yield _pieces(connection, http)


def _pieces(connection: socket.socket, http: Exchange) -> Iterator[bytes]:
    while not http.ended:
        yield http.receive(connection.recv(CHUNK))


@contextmanager
def _connected(address: Address) -> Iterator[socket.socket]:
    if address.socket:
        with unix_socket.connected(address.socket, CONNECT) as connection:
            yield connection
        return
    with socket.create_connection((address.host, address.port), CONNECT) as connection:
        if not address.tls:
            yield connection
            return
        import ssl

        with ssl.create_default_context().wrap_socket(connection, server_hostname=address.host) as encrypted:
            yield encrypted


def _checked(data: bytes) -> Json:
    """An event; if it reports an error, that is raised."""
    event = json_object(data)
    if "error" in event:
        raise error_of(event, 500)
    return event


def find() -> Client | None:
    """A client of the running daemon, or None. Nothing is started; the daemon may be about to leave."""
    path = paths.engine_socket()
    try:
        paths.check_private(path.parent)
    except FileNotFoundError:
        return None
    if not is_listening(path):
        return None
    client = Client(Address(path))
    try:
        client.health()
    except EngineGone:
        return None
    return client
