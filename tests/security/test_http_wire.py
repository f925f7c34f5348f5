"""Bytes on the TCP port that no client library would send: refused or cut off, and the next client is served."""

import http.client
import json
import socket
from contextlib import suppress
from typing import Any

import pytest

from localdflash.server.api.request_body import MAX_BODY_BYTES

BODY = json.dumps({"prompt": "def f(", "max_tokens": 2, "temperature": 0}).encode()
LENGTH = f"Content-Length: {len(BODY)}"
FINE = f"Host: localhost:PORT\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\n{LENGTH}\r\n"
POST = "POST /v1/completions HTTP/1.1\r\n"


def filled(live: Any, head: str) -> bytes:
    return head.replace("PORT", str(live.port)).replace("KEY", live.key).encode("latin-1")


def sent(live: Any, data: bytes, *, ends: bool = True) -> int | None:
    """The status of the first answer to these bytes; None where the connection was closed without one.

    `ends`: nothing more is sent after them, which to a server that answers means that the client is gone.
    """
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        with suppress(OSError):
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(connection)
        try:
            response.begin()
            response.read()
        except (http.client.HTTPException, ConnectionError):
            return None
        return response.status


def is_well(live: Any) -> None:
    live.until_idle()
    assert sent(live, filled(live, POST + FINE + "\r\n") + BODY, ends=False) == 200


@pytest.mark.parametrize(
    "head",
    [
        *("", "\0", "GET", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        *("POST /v1/completions HTTP/9.9\r\nHost: localhost:PORT\r\n\r\n", "POST  /v1/completions HTTP/1.1\r\n\r\n"),
        *("GET /health HTTP/1.1\r\nHost : localhost:PORT\r\n\r\n", "GET /health HTTP/1.1\r\n X: y\r\n\r\n"),
        "GET /health HTTP/1.1\r\nX: \0\r\nHost: localhost:PORT\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost:PORT\r\nX: " + "x" * 4_000_000 + "\r\n\r\n",
        "GET /health HTTP/1.1\r\n" + "X: y\r\n" * 20_000 + "\r\n",
    ],
    ids=range(12),
)
def test_what_is_no_http(live: Any, head: str) -> None:
    assert sent(live, filled(live, head)) in (None, 400, 401, 421)
    is_well(live)


@pytest.mark.parametrize(
    "change",
    [
        "Content-Length: 5\r\n",  # a second one, which says something else
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Host: evil.example\r\n",
        "Authorization: Bearer other\r\n",
    ],
)
def test_headers_that_contradict_each_other(live: Any, change: str) -> None:
    data = filled(live, POST + FINE + change + "\r\n") + BODY
    assert sent(live, data) in (None, 400, 401, 421, 501)
    is_well(live)


@pytest.mark.parametrize(
    "body", [b"", b"5\r\n", b"zz\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffff\r\n{}", b"-1\r\n{}\r\n0\r\n\r\n"]
)
def test_chunks_that_are_none(live: Any, body: bytes) -> None:
    head = FINE.replace(LENGTH, "Transfer-Encoding: chunked")
    assert sent(live, filled(live, POST + head + "\r\n") + body) in (None, 400)
    is_well(live)


def test_a_second_request_cannot_hide_in_the_first(live: Any) -> None:
    """Of a pipelined request the guard sees every header too."""
    hidden = filled(live, "POST /stop HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n")
    assert sent(live, filled(live, POST + FINE + "\r\n") + BODY + hidden, ends=False) == 200
    is_well(live)


@pytest.mark.parametrize("size", [2**30, 10**30])
def test_a_body_that_claims_a_lot_is_refused_before_it_comes(live: Any, size: int) -> None:
    head = FINE.replace(LENGTH, f"Content-Length: {size}")
    assert sent(live, filled(live, POST + head + "\r\n")) in (None, 400, 413)
    is_well(live)


@pytest.mark.nightly
def test_a_body_of_a_gigabyte_is_cut_off(live: Any) -> None:
    """Chunk after chunk: the server stops to read soon after what it takes."""
    head = FINE.replace(LENGTH, "Transfer-Encoding: chunked")
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    given = 0
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        connection.sendall(filled(live, POST + head + "\r\n"))
        with suppress(ConnectionError):
            while given < 1 << 30:
                connection.sendall(chunk)
                given += 1 << 20
    assert given < MAX_BODY_BYTES + (64 << 20)
    is_well(live)


def test_a_request_that_ends_too_early(live: Any) -> None:
    assert sent(live, filled(live, POST + FINE + "\r\n") + BODY[:-3]) in (None, 400)
    is_well(live)


def test_many_connections_that_say_nothing(live: Any) -> None:
    """The engine serves others while two hundred are open."""
    silent = [socket.create_connection(("127.0.0.1", live.port), timeout=20) for _ in range(200)]
    try:
        for connection in silent[::2]:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: ")
        is_well(live)
    finally:
        for connection in silent:
            connection.close()
    is_well(live)
