"""Malformed HTTP on the TCP port: refused or cut off, and the next client is served."""

import http.client
import json
import socket
from contextlib import suppress
from typing import Any

import pytest

BODY = json.dumps({"prompt": "def f(", "max_tokens": 2, "temperature": 0}).encode()
LENGTH = f"Content-Length: {len(BODY)}"
FINE = f"Host: localhost:PORT\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\n{LENGTH}\r\n"
POST = "POST /v1/completions HTTP/1.1\r\n"


def filled(live: Any, head: str) -> bytes:
    return head.replace("PORT", str(live.port)).replace("KEY", live.key).encode("latin-1")


def sent(live: Any, data: bytes, *, ends: bool = True) -> int | None:
    """Send bytes; return the status of the first answer, or None if the connection was closed without one.

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


CHUNKED = FINE.replace(LENGTH, "Transfer-Encoding: chunked")
# What is sent, and the answers besides a closed connection.
BROKEN: list[tuple[str, bytes, tuple[int, ...]]] = [
    # Not HTTP
    *((head, b"", (400, 401, 421)) for head in ("", "\0", "GET", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"", (400, 401, 421)),
    ("POST /v1/completions HTTP/9.9\r\nHost: localhost:PORT\r\n\r\n", b"", (400, 401, 421)),
    ("POST  /v1/completions HTTP/1.1\r\n\r\n", b"", (400, 401, 421)),
    ("GET /health HTTP/1.1\r\nHost : localhost:PORT\r\n\r\n", b"", (400, 401, 421)),
    ("GET /health HTTP/1.1\r\n X: y\r\n\r\n", b"", (400, 401, 421)),
    ("GET /health HTTP/1.1\r\nX: \0\r\nHost: localhost:PORT\r\n\r\n", b"", (400, 401, 421)),
    ("GET /health HTTP/1.1\r\nHost: localhost:PORT\r\nX: " + "x" * 4_000_000 + "\r\n\r\n", b"", (400, 401, 421)),
    ("GET /health HTTP/1.1\r\n" + "X: y\r\n" * 20_000 + "\r\n", b"", (400, 401, 421)),
    # Headers that contradict each other
    *(
        (f"{POST}{FINE}{header}\r\n\r\n", BODY, (400, 401, 421, 501))
        for header in (
            *("Content-Length: 5", "Content-Length: -1", "Transfer-Encoding: chunked"),
            *("Transfer-Encoding: \x0bchunked", "Host: evil.example", "Authorization: Bearer other"),
        )
    ),
    # Malformed chunks
    *((f"{POST}{CHUNKED}\r\n", body, (400,)) for body in (b"", b"5\r\n", b"zz\r\n{}\r\n0\r\n\r\n")),
    *((f"{POST}{CHUNKED}\r\n", body, (400,)) for body in (b"ffffffffffffffff\r\n{}", b"-1\r\n{}\r\n0\r\n\r\n")),
    # A body that claims a lot, which is refused before it comes; one that ends too early
    *((f"{POST}{FINE.replace(LENGTH, f'Content-Length: {size}')}\r\n", b"", (400, 413)) for size in (2**30, 10**30)),
    (f"{POST}{FINE}\r\n", BODY[:-3], (400,)),
]


@pytest.mark.parametrize(("head", "body", "statuses"), BROKEN, ids=range(len(BROKEN)))
def test_malformed_requests_are_refused(live: Any, head: str, body: bytes, statuses: tuple[int, ...]) -> None:
    assert sent(live, filled(live, head) + body) in (None, *statuses)
    is_well(live)


def test_a_second_request_cannot_hide_in_the_first(live: Any) -> None:
    """The guard sees every header of a pipelined request too."""
    hidden = filled(live, "POST /stop HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n")
    assert sent(live, filled(live, POST + FINE + "\r\n") + BODY + hidden, ends=False) == 200
    is_well(live)
