"""The client against servers that say what a test wants: streams cut anywhere, errors of all kinds, broken ends."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import (
    ContextOverflow,
    DeviceFailed,
    EngineGone,
    LocaldflashError,
    ModelError,
    ModelNotLoaded,
    OutOfMemory,
    QueueFull,
    UsageError,
)
from localdflash.server import client as client_module
from localdflash.server.address import Address
from localdflash.server.client import DONE, Client, Events, Exchange

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n"  # up to the connection's end
CHUNKED = EVENTS.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")
Answering = Callable[[bytes], Client]


def plain(status: int, body: Any, kind: str = "application/json", *more: str) -> bytes:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(data)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + data


class Server:
    """Says the same to everybody, after the request was read, and hangs up; `left`: whether a client was first."""

    def __init__(self, path: Path, said: bytes, stays: bool = False) -> None:
        self._said, self._stays = said, stays
        self.asked: list[bytes] = []
        self.left = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        head, _, body = request.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        while len(body) < length:
            body += connection.recv(65536)
        self.asked.append(request)
        connection.sendall(self._said)
        if self._stays:
            connection.recv(1)
            self.left.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[Client, Server]]]:
    """A server that gives this answer, and its client."""
    servers: list[Server] = []

    def started(said: bytes, *, stays: bool = False) -> tuple[Client, Server]:
        path = tmp_path / f"{len(servers)}"
        servers.append(Server(path, said, stays))
        return Client(Address(path)), servers[-1]

    yield started
    for server in servers:
        server.close()


@pytest.fixture
def answering(serve: Callable[..., tuple[Client, Server]]) -> Answering:
    return lambda said: serve(said)[0]


# Streams


def spelled(content: dict[str, Any], end: str, style: int) -> str:
    """One event, as different servers write it."""
    text = json.dumps(content, ensure_ascii=style % 2 == 0, indent=1 if style == 3 else None)
    lines = [f"data:{' ' * (style % 2)}{line}" for line in text.split("\n")]
    extra = [": a comment", "event: message", "id: 7"][: style % 4]
    return end.join([*extra, *lines, "", ""])


def received(pieces: list[bytes]) -> list[dict[str, Any]]:
    """The events of an answer that comes in these pieces, up to the last one's sign."""
    http, events, found = Exchange(Address()), Events(), list[dict[str, Any]]()
    http.request("POST", "/x", {}, streams=True)
    for piece in pieces:
        for data in events.push(http.receive(piece)):
            if data == DONE:
                return found
            found.append(json.loads(data))
    raise AssertionError("it had no end")


def chunked(data: bytes, sizes: list[int]) -> bytes:
    """The same in chunks."""
    said = b""
    for size in [*sizes, len(data)]:
        part, data = data[:size], data[size:]
        said += b"%x\r\n%b\r\n" % (len(part), part) if part else b""
    return said + b"0\r\n\r\n"


@given(
    contents=st.lists(st.dictionaries(st.sampled_from(["content", "text", "id"]), st.text(), max_size=3), max_size=6),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    styles=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    cuts=st.lists(st.integers(0, 3000), max_size=60),
    chunks=st.lists(st.integers(1, 300), max_size=9),
)
def test_any_cutting_of_a_stream_gives_its_events(
    contents: list[dict[str, str]], ends: str, styles: list[int], cuts: list[int], chunks: list[int]
) -> None:
    parts = [spelled(content, ends, style) for content, style in zip(contents, styles, strict=False)]
    body = ("".join(parts) + f"data: [DONE]{ends}{ends}").encode()
    for data in (EVENTS + body, CHUNKED + chunked(body, chunks)):
        places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        assert received([data[a:b] for a, b in pairwise(places)]) == contents


def test_a_byte_at_a_time() -> None:
    body = 'data: {"text": "é😋\\n"}\r\n\r\n: ping\r\n\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n'
    data = EVENTS + body.encode()
    assert received([data[i : i + 1] for i in range(len(data))]) == [{"text": "é😋\n"}, {"a": 1}]


def test_events_come_as_they_are_said(answering: Answering) -> None:
    said = EVENTS + b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    assert list(answering(said).stream("/x", {})) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("chunks", [(), (b'data: {"a": 1}\n\n',), (b'data: {"a": 1}\n\n', b'data: {"b')])
def test_a_stream_without_its_end_is_told_apart(chunks: tuple[bytes, ...], breaks: bool, answering: Answering) -> None:
    body = b"".join(chunks)
    said = CHUNKED + chunked(body, []).removesuffix(b"0\r\n\r\n") if breaks else EVENTS + body
    seen = []
    with pytest.raises(LocaldflashError) as caught:  # noqa: PT012
        for event in answering(said).stream("/x", {}):
            seen.append(event)
    assert isinstance(caught.value, EngineGone)
    assert seen == ([{"a": 1}] if chunks else [])


def test_infill_ends_by_saying_so(answering: Answering) -> None:
    body = b'data: {"content": "x", "stop": false}\n\ndata: {"content": "", "stop": true}\n\n'
    assert list(answering(EVENTS + body).stream("/x", {})) == [
        {"content": "x", "stop": False},
        {"content": "", "stop": True},
    ]


def test_an_error_in_the_middle_is_raised(answering: Answering) -> None:
    error = b'data: {"error": {"message": "out", "code": "out_of_memory"}}\n\n'
    with pytest.raises(OutOfMemory, match="out"):
        list(answering(EVENTS + b'data: {"a": 1}\n\n' + error).stream("/x", {}))


def test_closing_a_stream_closes_its_connection(serve: Callable[..., tuple[Client, Server]]) -> None:
    client, server = serve(EVENTS + b'data: {"a": 1}\n\n' * 5, stays=True)
    answer = client.stream("/x", {})
    next(answer)
    assert not server.left.wait(0.05)
    answer.close()
    assert server.left.wait(5)


@pytest.mark.parametrize(
    "data", [b"data: {\n\n", b"data: []\n\n", b"data: 1\n\n", b"data: " + b"[" * 100_000 + b"\n\n"]
)
def test_an_event_that_is_no_object(data: bytes, answering: Answering) -> None:
    with pytest.raises(LocaldflashError, match="no JSON object"):
        list(answering(EVENTS + data).stream("/x", {}))


def test_an_answer_that_is_no_stream(answering: Answering) -> None:
    with pytest.raises(LocaldflashError, match="not a stream of events"):
        list(answering(plain(200, {})).stream("/x", {}))


def test_answers_without_an_end_are_given_up(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BYTES", 100_000)
    with pytest.raises(LocaldflashError, match="100000"):
        answering(plain(200, "x" * 200_000)).get("/x")
    with pytest.raises(LocaldflashError, match="100000"):
        list(answering(EVENTS + b"x" * 200_000).stream("/x", {}))
    many = EVENTS + b'data: {"a": 1}\n\n' * 20_000 + b"data: [DONE]\n\n"
    assert len(list(answering(many).stream("/x", {}))) == 20_000


# Requests


def test_what_is_asked(serve: Callable[..., tuple[Client, Server]]) -> None:
    client, server = serve(plain(200, {"a": "é"}))
    assert client.post("/x", {"b": "é\ud800"}) == client.get("/y") == {"a": "é"}
    assert client.get_text("/z") == '{"a": "\\u00e9"}'
    post, get, _ = server.asked
    assert post.startswith(b"POST /x HTTP/1.1\r\n")
    assert post.endswith('\r\n\r\n{"b":"é?"}'.encode()) or post.endswith('\r\n\r\n{"b": "é?"}'.encode())
    assert get.startswith(b"GET /y HTTP/1.1\r\nHost: localdflash\r\n")


def test_health_is_told_whatever_its_status(answering: Answering) -> None:
    told = {"error": {"code": "engine_stopped"}}
    assert answering(plain(503, told)).health() == told


# Errors


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "context_length_exceeded", ContextOverflow),
        (400, None, UsageError),
        (400, "invalid_value", UsageError),
        (400, "unsupported_by_model", ModelError),
        (404, "model_not_found", ModelNotLoaded),
        (401, "invalid_api_key", UsageError),
        (503, "queue_full", QueueFull),
        (503, "out_of_memory", OutOfMemory),
        (503, "device_failed", DeviceFailed),
        (503, "engine_stopped", EngineGone),
        (500, "internal_error", LocaldflashError),
        (502, 502, LocaldflashError),
        (400, ["?"], UsageError),
    ],
)
def test_errors_are_ours(status: int, code: Any, kind: type[LocaldflashError], answering: Answering) -> None:
    client = answering(plain(status, {"error": {"message": "what, where", "type": "x", "param": None, "code": code}}))
    for ask in (lambda c: c.get("/x"), lambda c: c.post("/x", {}), lambda c: list(c.stream("/x", {}))):
        with pytest.raises(kind) as caught:
            ask(client)
        assert (type(caught.value), str(caught.value)) == (kind, "what, where")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (plain(502, "<html>Bad Gateway", "text/html"), "the server answered with status 502"),
        (plain(404, {"detail": "Not Found"}), "Not Found"),
        (plain(500, {"error": "a string"}), "a string"),
        (plain(500, {"error": None}), "status 500"),
        (plain(200, "<html>", "text/html"), "no JSON object"),
        (plain(200, [1]), "no JSON object"),
        (plain(301, "", "text/html", "Location: http://evil/"), "status 301"),
    ],
)
def test_servers_that_say_less(said: bytes, message: str, answering: Answering) -> None:
    with pytest.raises(LocaldflashError, match=message):
        answering(said).get("/x")


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH\r\n\r\n", plain(200, {"a": 1}, "text/event-stream")[:-1]]
)
def test_a_connection_that_breaks(said: bytes, answering: Answering) -> None:
    for ask in (lambda c: c.get("/x"), lambda c: list(c.stream("/x", {}))):
        with pytest.raises(EngineGone, match="the engine went away: ") as caught:
            ask(answering(said))
        assert "\n" not in str(caught.value)


def test_where_nobody_is(tmp_path: Path) -> None:
    with pytest.raises(EngineGone, match="the engine went away: No such file"):
        Client(Address(tmp_path / "nothing")).get("/x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineGone, match=f"^{url} cannot be reached: Connection refused$"):
            Client(Address.of_url(url)).get("/x")
    with pytest.raises(EngineGone, match=r"^x went away: Name or service not known$"), client_module.broken("x"):
        raise socket.gaierror(-2, "Name or service not known")


def test_health_does_not_wait_for_long(
    serve: Callable[..., tuple[Client, Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.05)
    began = time.monotonic()
    with pytest.raises(EngineGone, match="the engine does not answer"):
        serve(b"", stays=True)[0].health()
    assert time.monotonic() - began < 2


def test_a_server_that_does_not_speak_tls(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(plain(200, {}))

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(EngineGone, match="went away"):
            Client(Address.of_url(url)).get("/x")
        thread.join()


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "file:///etc/passwd", "unix:/x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="not the address of a server"):
        Address.of_url(url)


def test_v1_may_be_there_or_not() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert Address.of_url(url, "k").place == "http://h:1"
