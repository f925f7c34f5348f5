"""Clients against scripted servers: streams cut anywhere, errors, broken connections."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.base.errors import (
    ContextOverflow,
    DeviceError,
    EngineDisconnect,
    LocaldflashError,
    ModelError,
    NoLoadedModel,
    OutOfMemory,
    QueueFull,
    UsageError,
)
from localdflash.server import client as module
from localdflash.server.address import Address
from localdflash.server.client import DONE, Client, ClientConnection, EventParser, Exchange

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n"  # up to the connection's end
CHUNKED = EVENTS.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")
Answering = Callable[..., Client]


def plain(status: int, body: Any, kind: str = "application/json", *more: str) -> bytes:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(data)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + data


@dataclass
class Server:
    """Connection to a server that answers every request alike and hangs up, or stays silent if it `stays`."""

    said: bytes
    stays: bool = False
    asked: list[bytes] = field(default_factory=list)
    left: bool = False
    _left: bytes = b""
    _timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def sendall(self, request: bytes) -> None:
        self.asked.append(request)
        self._left = self.said

    def recv(self, size: int) -> bytes:
        said, self._left = self._left, b""
        if not said and self.stays:
            assert self._timeout is not None, "it would wait for ever"
            raise TimeoutError
        return said


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Create a client of a server that gives this answer."""

    def client_of(said: bytes | Server) -> Client:
        server = said if isinstance(said, Server) else Server(said)

        @contextmanager
        def connect(_: Address) -> Iterator[Server]:
            try:
                yield server
            finally:
                server.left = True

        monkeypatch.setattr(module, "_connect", connect)
        return Client(Address(port=1))

    return client_of


def spelled(content: dict[str, Any], end: str, style: int) -> str:
    """Return one event in the style of different servers."""
    text = json.dumps(content, ensure_ascii=style % 2 == 0, indent=1 if style == 3 else None)
    lines = [f"data:{' ' * (style % 2)}{line}" for line in text.split("\n")]
    extra = [": a comment", "event: message", "id: 7"][: style % 4]
    return end.join([*extra, *lines, "", ""])


def received(pieces: list[bytes]) -> list[dict[str, Any]]:
    """Return the events of an answer that arrives in pieces."""
    http, events, found = Exchange(Address()), EventParser(), list[dict[str, Any]]()
    http.request("POST", "/x", {}, expects_events=True)
    for piece in pieces:
        for data in events.push(http.receive(piece)):
            if data == DONE:
                return found
            found.append(json.loads(data))
    raise AssertionError("it had no end")


def chunked(data: bytes, sizes: list[int]) -> bytes:
    """Encode data in HTTP chunks."""
    said = b""
    for size in [*sizes, len(data)]:
        part, data = data[:size], data[size:]
        said += b"%x\r\n%b\r\n" % (len(part), part) if part else b""
    return said + b"0\r\n\r\n"


@settings(max_examples=40)
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
    assert received([bytes([byte]) for byte in EVENTS + body]) == contents


def test_a_truncated_stream_is_an_error(answering: Answering) -> None:
    body = b'data: {"a": 1}\n\ndata: {"b'
    for said in (CHUNKED + chunked(body, []).removesuffix(b"0\r\n\r\n"), EVENTS + body):
        answer = answering(said).stream("/x", {})
        assert next(answer) == {"a": 1}
        with pytest.raises(EngineDisconnect):
            next(answer)


def test_events_of_a_stream_are_parsed(answering: Answering) -> None:
    ends = EVENTS + b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\ndata: {"a": 3}\n\n'
    assert list(answering(ends).stream("/x", {})) == [{"a": 1}, {"a": 2}]
    infill = EVENTS + b'data: {"stop": false}\n\ndata: {"stop": true}\n\n'  # which says its end in another way
    assert list(answering(infill).stream("/x", {})) == [{"stop": False}, {"stop": True}]
    error = b'data: {"error": {"message": "out", "code": "out_of_memory"}}\n\n'
    with pytest.raises(OutOfMemory, match="out"):
        list(answering(EVENTS + b'data: {"a": 1}\n\n' + error).stream("/x", {}))
    for data in (b"{", b"[]", b"1", b"[" * 100_000):
        with pytest.raises(LocaldflashError, match="expected a JSON object"):
            list(answering(EVENTS + b"data: " + data + b"\n\n").stream("/x", {}))
    with pytest.raises(LocaldflashError, match="expected an event stream"):
        list(answering(plain(200, {})).stream("/x", {}))


def test_answers_without_an_end_are_given_up(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100_000)
    with pytest.raises(LocaldflashError, match="100000"):
        answering(plain(200, "x" * 200_000)).get("/x")
    with pytest.raises(LocaldflashError, match="100000"):
        list(answering(EVENTS + b"x" * 200_000).stream("/x", {}))
    many = EVENTS + b'data: {"a": 1}\n\n' * 20_000 + b"data: [DONE]\n\n"
    assert len(list(answering(many).stream("/x", {}))) == 20_000


def test_requests_are_encoded(answering: Answering) -> None:
    server = Server(plain(200, {"a": "é"}))
    client = answering(server)
    assert client.post("/x", {"b": "é\ud800"}) == client.get("/y") == {"a": "é"}
    assert client.get_text("/z") == '{"a": "\\u00e9"}'
    post, get, _ = server.asked
    assert post.startswith(b"POST /x HTTP/1.1\r\n")
    assert post.partition(b"\r\n\r\n")[2].replace(b" ", b"") == '{"b":"é?"}'.encode()
    assert get.startswith(b"GET /y HTTP/1.1\r\nHost: localdflash:1\r\n")


def test_addresses() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert Address.of_url(url, "k").display_name == "http://h:1"
    for url in ("", "localhost:8080", "ftp://x", "http://", "file:///etc/passwd", "http://a b"):
        with pytest.raises(UsageError, match="invalid server address"):
            Address.of_url(url)


async def test_a_connection_is_reused_for_the_next_request_and_opened_anew_where_it_was_closed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):  # then it hangs up
            await reader.read(65_536)
            writer.write(plain(200, {"peer": writer.get_extra_info("peername")[1]}))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = ClientConnection(Address(host=host, port=port), json.loads)
    peers = [(await connection.get("/x"))["peer"] for _ in range(4)]
    assert peers[0] == peers[1] != peers[2] == peers[3]
    connection.close()
    server.close()
    with pytest.raises(EngineDisconnect, match="cannot be reached"):
        await connection.get("/x")


# Errors

KINDS: list[tuple[int, Any, type[LocaldflashError]]] = [
    (400, "context_length_exceeded", ContextOverflow),
    (400, None, UsageError),
    (400, "unsupported_by_model", ModelError),
    (404, "model_not_found", NoLoadedModel),
    (503, "queue_full", QueueFull),
    (503, "out_of_memory", OutOfMemory),
    (503, "device_failed", DeviceError),
    (503, "engine_stopped", EngineDisconnect),
    (500, "internal_error", LocaldflashError),
    (400, ["?"], UsageError),
]


def test_error_codes_become_exceptions(answering: Answering) -> None:
    for status, code, kind in KINDS:
        told = {"error": {"message": "what, where", "type": "x", "param": None, "code": code}}
        client = answering(plain(status, told))
        for ask in (lambda c: c.get("/x"), lambda c: list(c.stream("/x", {}))):
            with pytest.raises(kind) as caught:
                ask(client)
            assert (type(caught.value), str(caught.value)) == (kind, "what, where")
        assert client.health() == told


def test_a_connection_that_breaks(answering: Answering) -> None:
    for said in (b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH\r\n\r\n", plain(200, {"a": 1}, "text/event-stream")[:-1]):
        for ask in (lambda c: c.get("/x"), lambda c: list(c.stream("/x", {}))):
            with pytest.raises(EngineDisconnect, match="the daemon went away: ") as caught:
                ask(answering(said))
            assert "\n" not in str(caught.value)
    with pytest.raises(EngineDisconnect, match="the daemon does not respond"):
        answering(Server(b"", stays=True)).health()


def test_an_unreachable_engine_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineDisconnect, match="the daemon went away: No such file"):
        Client(Address(tmp_path / "nothing")).get("/x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineDisconnect, match=f"^{url} cannot be reached: Connection refused$"):
            Client(Address.of_url(url)).get("/x")
    gone = pytest.raises(EngineDisconnect, match=r"^x went away: Name or service not known$")
    with gone, module.convert_connection_errors("x"):
        raise socket.gaierror(-2, "Name or service not known")
