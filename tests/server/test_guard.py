import asyncio
from typing import Any

import pytest

from localdflash.server.guard import LOOPBACK, Guard

KEY = "s3cret-ключ"
AUTHORIZED = (b"authorization", f"Bearer {KEY}".encode())
IN_ITS_OWN_HEADER = (b"x-api-key", KEY.encode())


async def passed(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status(*headers: tuple[bytes, bytes], path: str = "/v1/models", hosts: Any = LOOPBACK, method: str = "GET") -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b""}
    asyncio.run(Guard(passed, key=KEY, hosts=hosts)(scope, receive, send))
    assert not any(name.lower().startswith(b"access-control") for name, _ in sent[0]["headers"])
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"localhost:4321", 200),
        (b"LocalHost:4321", 200),
        (b"127.0.0.1:4321", 200),
        (b"[::1]:4321", 200),
        (b"localhost", 200),
        (b"localhost:80", 200),
        (b"localhost:9000", 200),  # ssh -L 9000:localhost:4321
        (b"127.0.0.1:1", 200),
        (b"[::1]", 200),
        (b"localhost:0", 421),
        (b"localhost:65536", 421),
        (b"127.0.0.1:", 421),
        (b"evil.example:4321", 421),
        (b"evil.example", 421),
        (b"localhost.evil.example:4321", 421),
        (b"evil-localhost:4321", 421),
        (b"localhost.:4321", 421),
        (b"foo.localhost:4321", 421),
        (b"127.0.0.1.nip.io:4321", 421),
        (b"127.0.0.2:4321", 421),
        (b"127.1:4321", 421),
        (b"2130706433:4321", 421),
        (b"0x7f000001:4321", 421),
        (b"0.0.0.0:4321", 421),
        (b"[::]:4321", 421),
        (b"::1:4321", 421),
        (b"[::ffff:127.0.0.1]:4321", 421),
        (b"192.168.1.10:4321", 421),
        (b"169.254.169.254:4321", 421),
        (b"user@localhost:4321", 421),
        (b"localhost:4321@evil.example", 421),
        (b"localhost:4321, evil.example", 421),
        (b"localhost:4321\x00", 421),
        (b"localhost/:4321", 421),
        (b" localhost:4321", 421),
        (b"", 421),
        (b"\xff\xfe:4321", 421),
        (b"localhost:99999999", 421),
    ],
)
def test_only_names_of_this_machine_are_hosts(host: bytes, expected: int) -> None:
    assert status((b"host", host), AUTHORIZED) == expected


def test_exactly_one_host() -> None:
    assert status(AUTHORIZED) == 421
    assert status((b"host", b"localhost:4321"), (b"host", b"localhost:4321"), AUTHORIZED) == 421


def test_another_name_may_be_allowed() -> None:
    assert status((b"host", b"box.lan:4321"), AUTHORIZED, hosts={"Box.lan"}) == 200
    assert status((b"host", b"localhost:4321"), AUTHORIZED, hosts={"box.lan"}) == 421


@pytest.mark.parametrize(
    "origin",
    [
        *(b"http://evil.example", b"null", b"http://localhost:4321", b"http://127.0.0.1:4321", b"https://localhost"),
        *(b"", b"file://", b"vscode-webview://x", b"chrome-extension://abc"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_no_web_page_may_ask(origin: bytes, method: str) -> None:
    for path in ("/v1/models", "/health"):
        assert status((b"host", b"localhost:4321"), (b"origin", origin), AUTHORIZED, path=path, method=method) == 403


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        f"Basic {KEY}".encode(),
        KEY.encode(),
        f"Bearer {KEY}x".encode(),
        f"Bearer {KEY[:-1]}".encode(),
        f"Bearer x{KEY}".encode(),
        f"Bearer {KEY.upper()}".encode(),
        f"Bearer {KEY}, Bearer {KEY}".encode(),
        b"Bearer \xff\xfe",
    ],
)
def test_a_wrong_key(authorization: bytes | None) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization)]
    for path in ("/v1/models", "/metrics", "/ps", "/nope", "/load", "/health/"):
        assert status((b"host", b"localhost:4321"), *headers, path=path) == 401


def test_the_host_comes_before_the_key() -> None:
    assert status((b"host", b"evil.example"), path="/health") == 421
    assert status((b"host", b"evil.example")) == 421


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_needs_no_key(path: str) -> None:
    assert status((b"host", b"localhost:4321"), path=path) == 200


def test_two_keys_are_none() -> None:
    assert status((b"host", b"localhost:4321"), AUTHORIZED, AUTHORIZED) == 401
    assert status((b"host", b"localhost:4321"), IN_ITS_OWN_HEADER, IN_ITS_OWN_HEADER) == 401


def test_the_key_may_have_a_header_of_its_own() -> None:
    assert status((b"host", b"localhost:4321"), IN_ITS_OWN_HEADER) == 200
    for wrong in (b"", b"wrong", f"Bearer {KEY}".encode(), KEY.encode()[:-1]):
        assert status((b"host", b"localhost:4321"), (b"x-api-key", wrong)) == 401


def test_one_right_key_is_enough() -> None:
    """A client that has another server's key as well sends both."""
    other = b"sk-of-another-server"
    assert status((b"host", b"localhost:4321"), AUTHORIZED, (b"x-api-key", other)) == 200
    assert status((b"host", b"localhost:4321"), IN_ITS_OWN_HEADER, (b"authorization", b"Bearer " + other)) == 200
    assert status((b"host", b"localhost:4321"), (b"x-api-key", other), (b"authorization", b"Bearer " + other)) == 401


def test_bearer_may_be_spelled_in_any_case() -> None:
    assert status((b"host", b"localhost:4321"), (b"authorization", f"bearer {KEY}".encode())) == 200


@pytest.mark.parametrize("path", ["/load", "/stop", "/listen"])
def test_loading_stopping_and_opening_ports_are_for_the_unix_socket(path: str) -> None:
    assert status((b"host", b"localhost:4321"), AUTHORIZED, path=path, method="POST") == 403


def test_a_guard_needs_a_key() -> None:
    with pytest.raises(ValueError, match="key"):
        Guard(passed, key="")


def test_no_web_sockets() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    asyncio.run(Guard(passed, key=KEY)({"type": "websocket", "headers": [], "path": "/"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
