"""Silent, slow and too many connections: the server closes them and still answers others."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from localdflash.server import connections
from localdflash.server.connections import DescriptorExhaustionHandler, ServerConnection, waiting_connections
from localdflash.server.daemon import DaemonListener
from localdflash.server.guard import Guard
from tests.support import daemons
from tests.support.daemons import short_home, start, until

resource = pytest.importorskip("resource")
KEY = "a-key"
PATIENCE, MARGIN = 0.3, 3.0  # seconds
HEAD = f"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n".encode()
ASK = HEAD + b"Content-Length: 0\r\n\r\n"

reading, disconnected = threading.Event(), threading.Event()  # set by requests that wait until their client disconnects


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """Answer after a pause that is longer than a connection may wait; read the body before it or after it."""
    if scope["path"] == "/later":
        await asyncio.sleep(4 * PATIENCE)
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    if scope["path"] == "/disconnect":
        reading.set()
        message = await receive()
    if message["type"] == "http.disconnect":
        disconnected.set()
        return
    await asyncio.sleep(2 * PATIENCE)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Served:
    """A listener of `ServerConnection`s behind a guard, on a thread."""

    def __init__(self, listener: socket.socket) -> None:
        config = uvicorn.Config(
            Guard(answers, key=KEY),
            http=ServerConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
        )
        self.server, self.port = DaemonListener(config), listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([listener])), daemon=True)
        self._thread.start()

    def connect(self, *pieces: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        for piece in pieces:
            connection.sendall(piece)
        return connection

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(connections, "WAIT_SECONDS", PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = Served(listener)
        yield one
        one.close()


def ended(connection: socket.socket) -> bytes:
    """Return the bytes that arrive before the server closes the connection, which must be soon."""
    connection.settimeout(MARGIN)
    got = b""
    while True:
        try:
            piece = connection.recv(4096)
        except ConnectionResetError:
            return got
        if not piece:
            return got
        got += piece


def answered(connection: socket.socket) -> None:
    """Read a whole answer."""
    got = b""
    while not got.endswith(b"ok"):
        piece = connection.recv(4096)
        assert piece, got
        got += piece


def test_a_connection_that_says_nothing_more_is_closed(served: Served) -> None:
    begun = (b"", b"POST", HEAD, HEAD + b"Content-Length: 5\r\n\r\n", HEAD + b"Content-Length: 5\r\n\r\nab")
    began, connections = time.monotonic(), [served.connect(said) for said in begun]
    assert [ended(connection) for connection in connections] == [b""] * 5
    assert time.monotonic() - began > PATIENCE / 2
    for connection in connections:
        connection.close()


def test_a_slow_head_does_not_keep_the_connection(served: Served) -> None:
    began = time.monotonic()
    with served.connect() as connection, suppress(OSError):  # a broken pipe
        for byte in HEAD * 5:
            connection.sendall(bytes([byte]))
            time.sleep(PATIENCE / 4)
    assert time.monotonic() - began < MARGIN


def test_a_body_after_a_refusal_does_not_keep_the_connection(served: Served) -> None:
    with served.connect(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n") as connection:
        got = ended(connection)
    assert got.startswith(b"HTTP/1.1 401 ")


def test_a_client_that_sends_its_whole_body_sees_the_refusal(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", 30.0)
    size = 20 << 20
    with served.connect(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size) as connection:
        connection.sendall(bytes(size))
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_body_may_come_in_pieces_and_an_answer_may_take_long(served: Served) -> None:
    with served.connect(HEAD + b"Content-Length: 6\r\n\r\n") as connection:
        for _ in range(6):
            time.sleep(PATIENCE / 2)
            connection.sendall(b"x")
        answered(connection)


def test_a_body_that_is_not_read_yet_is_waited_for(served: Served) -> None:
    size = 1 << 20  # more than is read ahead
    with served.connect(HEAD.replace(b"/", b"/later", 1) + b"Content-Length: %d\r\n\r\n" % size) as connection:
        connection.sendall(bytes(size))
        answered(connection)


def test_a_connection_is_kept_for_another_request(served: Served) -> None:
    with served.connect(ASK) as connection:
        answered(connection)
        time.sleep(2 * PATIENCE)  # longer than for a head that has begun
        connection.sendall(ASK)
        answered(connection)
        connection.sendall(b"POST")
        assert ended(connection) == b""


@pytest.mark.parametrize("more", [b"", b"\r\n", ASK, ASK[:9], HEAD + b"Content-Length: 9\r\n\r\n"])
def test_a_client_that_sends_more_and_disconnects_is_noticed(served: Served, more: bytes) -> None:
    reading.clear()
    disconnected.clear()
    with served.connect(ASK.replace(b"/", b"/disconnect", 1)) as connection:
        assert reading.wait(10)
        connection.sendall(more)
        until(lambda: _unanswered_bytes(served) == len(more))
    assert disconnected.wait(10)


def _unanswered_bytes(served: Served) -> int:
    (connection,) = served.server.server_state.connections
    return len(connection.conn.trailing_data[0])  # type: ignore[union-attr]


def test_pipelined_requests_are_answered_in_turn(served: Served) -> None:
    body = bytes(connections.MAX_PIPELINED_BYTES * 4)
    with served.connect(ASK, HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body, ASK) as connection:
        for _ in range(3):
            answered(connection)


def test_the_oldest_waiting_connections_are_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", 30.0)
    monkeypatch.setattr(ServerConnection, "max_waiting", 3)
    asked = served.connect(ASK)
    silent = []
    for count in range(1, 10):
        silent.append(served.connect())
        until(lambda: len(waiting_connections(served.server.server_state.connections)) == min(count, 3))  # noqa: B023
    assert [ended(one) for one in silent[:6]] == [b""] * 6
    answered(asked)  # one that is answered does not wait
    with served.connect(ASK) as connection:
        answered(connection)
    for one in (*silent, asked):
        one.close()


def test_malformed_requests_add_nothing_to_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for malformed in (b"x\r\n\r\n", head + b"zz\r\n"):
        with served.connect(malformed) as connection:
            assert ended(connection).startswith(b"HTTP/1.1 400 ")
    with served.connect(head) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"zz\r\n")
        ended(connection)
    assert not caplog.records


def test_many_requests_at_once_are_all_answered() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        asked = [socket.create_connection(listener.getsockname(), 10) for _ in range(200)]
        for connection in asked:
            connection.sendall(ASK)
        one = Served(listener)  # accepts all of them before it reads any
        for connection in asked:
            with connection:
                answered(connection)
        one.close()


def test_running_out_of_descriptors_is_one_line() -> None:
    made, said = [], list[str]()
    handle = DescriptorExhaustionHandler(lambda: made.append(1), said.append)
    loop = asyncio.new_event_loop()
    for _ in range(1000):
        handle(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many")})
    loop.close()
    assert len(made) == 1000
    assert said == ["cannot accept connections ([Errno 24] Too many); closed waiting connections"]


@pytest.mark.system
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process")
def test_a_flood_over_tcp_stops_nobody_on_the_unix_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_home(monkeypatch) as home:
        log = home / "log"
        process = start("--port", "0", "--log", str(log))
        port = int(log.read_text().split("listening on http://127.0.0.1:")[1].split(":")[0].split()[0].rstrip("/"))
        opened = len(list((Path("/proc") / str(process.pid) / "fd").iterdir()))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (opened + 20, opened + 20))
        before = log.stat().st_size
        flood = [socket.socket() for _ in range(200)]
        for one in flood:
            one.setblocking(False)  # it may not be accepted yet
            one.connect_ex(("127.0.0.1", port))
        for _ in range(5):
            with daemons.client() as client:
                assert client.health()["status"] == "ok"
        assert log.stat().st_size - before < 1000, log.read_text()[-2000:]
        for one in flood:
            one.close()
