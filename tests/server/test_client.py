"""The client against servers that say what a test wants: streams cut anywhere, errors of all kinds, broken ends."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.errors import (
    ContextOverflow,
    DeviceFailed,
    EngineGone,
    LocaldflashError,
    ModelError,
    OutOfMemory,
    QueueFull,
    UsageError,
)
from localdflash.server.client import Client

EVENTS = {"Content-Type": "text/event-stream"}


class Chunks(httpx2.SyncByteStream):
    """A body in pieces; after them it breaks, if it has to."""

    def __init__(self, chunks: list[bytes], breaks: bool = False) -> None:
        self._chunks, self._breaks, self.closed = chunks, breaks, False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._breaks:
            raise httpx2.ReadError("connection reset")

    def close(self) -> None:
        """See httpx."""
        self.closed = True


def answering(response: Any) -> Client:
    """A client of a server that gives this response, or raises this error."""

    def handle(_: httpx2.Request) -> httpx2.Response:
        if isinstance(response, Exception):
            raise response
        assert isinstance(response, httpx2.Response)
        return response

    return Client(httpx2.Client(transport=httpx2.MockTransport(handle), base_url="http://x"), "the engine")


def streaming(*chunks: bytes, breaks: bool = False) -> list[dict[str, Any]]:
    return list(answering(httpx2.Response(200, headers=EVENTS, stream=Chunks([*chunks], breaks))).stream("/x", {}))


# Streams


def spelled(content: dict[str, Any], end: str, style: int) -> str:
    """One event, as different servers write it."""
    text = json.dumps(content, ensure_ascii=style % 2 == 0, indent=1 if style == 3 else None)
    lines = [f"data:{' ' * (style % 2)}{line}" for line in text.split("\n")]
    extra = [": a comment", "event: message", "id: 7"][: style % 4]
    return end.join([*extra, *lines, "", ""])


@given(
    contents=st.lists(st.dictionaries(st.sampled_from(["content", "text", "id"]), st.text(), max_size=3), max_size=6),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    styles=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    cuts=st.lists(st.integers(0, 3000), max_size=60),
)
def test_any_cutting_of_a_stream_gives_its_events(
    contents: list[dict[str, str]], ends: str, styles: list[int], cuts: list[int]
) -> None:
    parts = [spelled(content, ends, style) for content, style in zip(contents, styles, strict=False)]
    data = ("".join(parts) + f"data: [DONE]{ends}{ends}").encode()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    assert streaming(*(data[a:b] for a, b in pairwise(places))) == contents


def test_a_byte_at_a_time() -> None:
    data = 'data: {"text": "é😋\\n"}\r\n\r\n: ping\r\n\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n'.encode()
    assert streaming(*(data[i : i + 1] for i in range(len(data)))) == [{"text": "é😋\n"}, {"a": 1}]


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("chunks", [(), (b'data: {"a": 1}\n\n',), (b'data: {"a": 1}\n\n', b'data: {"b')])
def test_a_stream_without_its_end_is_told_apart(chunks: tuple[bytes, ...], breaks: bool) -> None:
    seen = []
    with pytest.raises((EngineGone, LocaldflashError)) as caught:  # noqa: PT012
        client = answering(httpx2.Response(200, headers=EVENTS, stream=Chunks([*chunks], breaks)))
        for event in client.stream("/x", {}):
            seen.append(event)
    assert isinstance(caught.value, EngineGone)
    assert seen == ([{"a": 1}] if chunks else [])


def test_infill_ends_by_saying_so() -> None:
    assert streaming(b'data: {"content": "x", "stop": false}\n\ndata: {"content": "", "stop": true}\n\n') == [
        {"content": "x", "stop": False},
        {"content": "", "stop": True},
    ]


def test_an_error_in_the_middle_is_raised() -> None:
    error = b'data: {"error": {"message": "out", "code": "out_of_memory"}}\n\n'
    with pytest.raises(OutOfMemory, match="out"):
        streaming(b'data: {"a": 1}\n\n', error)


def test_closing_a_stream_closes_its_response() -> None:
    body = Chunks([b'data: {"a": 1}\n\n'] * 5)
    answer = answering(httpx2.Response(200, headers=EVENTS, stream=body)).stream("/x", {})
    next(answer)
    assert not body.closed
    answer.close()
    assert body.closed


@pytest.mark.parametrize(
    "data", [b"data: {\n\n", b"data: []\n\n", b"data: 1\n\n", b"data: " + b"[" * 100_000 + b"\n\n"]
)
def test_an_event_that_is_no_object(data: bytes) -> None:
    with pytest.raises(LocaldflashError, match="no JSON object"):
        streaming(data)


def test_an_answer_that_is_no_stream() -> None:
    with pytest.raises(LocaldflashError, match="not a stream of events"):
        list(answering(httpx2.Response(200, json={})).stream("/x", {}))


# Errors


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "context_length_exceeded", ContextOverflow),
        (400, None, UsageError),
        (400, "invalid_value", UsageError),
        (400, "unsupported_by_model", ModelError),
        (404, "model_not_found", ModelError),
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
def test_errors_are_ours(status: int, code: Any, kind: type[LocaldflashError]) -> None:
    body = {"error": {"message": "what, where", "type": "x", "param": None, "code": code}}
    for ask in (lambda c: c.get("/x"), lambda c: c.post("/x", {}), lambda c: list(c.stream("/x", {}))):
        with pytest.raises(kind) as caught:
            ask(answering(httpx2.Response(status, json=body)))
        assert (type(caught.value), str(caught.value)) == (kind, "what, where")


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx2.Response(502, text="<html>Bad Gateway"), "the server answered with status 502"),
        (httpx2.Response(404, json={"detail": "Not Found"}), "Not Found"),
        (httpx2.Response(500, json={"error": "a string"}), "a string"),
        (httpx2.Response(500, json={"error": None}), "status 500"),
        (httpx2.Response(200, text="<html>"), "no JSON object"),
        (httpx2.Response(200, json=[1]), "no JSON object"),
        (httpx2.Response(301, headers={"Location": "http://evil/"}), "status 301"),
    ],
)
def test_servers_that_say_less(response: httpx2.Response, message: str) -> None:
    with pytest.raises(LocaldflashError, match=message):
        answering(response).get("/x")


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ConnectError("refused"),
        httpx2.ReadError("reset"),
        httpx2.RemoteProtocolError("closed"),
        httpx2.ReadTimeout("late"),
        httpx2.WriteError("pipe"),
    ],
)
def test_a_connection_that_breaks(error: Exception) -> None:
    for ask in (lambda c: c.get("/x"), lambda c: list(c.stream("/x", {}))):
        with pytest.raises(EngineGone):
            ask(answering(error))


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "file:///etc/passwd", "unix:/x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="not the address of a server"):
        Client.of_url(url)


def test_v1_may_be_there_or_not() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        with Client.of_url(url, "k") as client:
            assert client.place == "http://h:1"
