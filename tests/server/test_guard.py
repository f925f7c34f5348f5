"""Guard of a TCP port: local Host names only, no Origin, and the API key."""

from typing import Any

import pytest

from localdflash.server.guard import LOOPBACK, Guard

KEY = "s3cret-ключ"
HOST = (b"host", b"localhost:4321")
AUTHORIZED = (b"authorization", f"Bearer {KEY}".encode())
IN_ITS_OWN_HEADER = (b"x-api-key", KEY.encode())


async def passed(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(
    *headers: tuple[bytes, bytes],
    path: str = "/v1/models",
    hosts: Any = LOOPBACK,
    method: str = "GET",
    is_local: bool = False,
) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b""}
    await Guard(passed, key=KEY, hosts=hosts, is_local=is_local)(scope, receive, send)
    assert not any(name.lower().startswith(b"access-control") for name, _ in sent[0]["headers"])
    return int(sent[0]["status"])


OURS = [
    *(b"localhost:4321", b"LocalHost:4321", b"127.0.0.1:4321", b"[::1]:4321", b"localhost", b"localhost:80", b"[::1]"),
    *(b"localhost:9000", b"127.0.0.1:1", b"localhost:65535"),  # ssh -L 9000:localhost:4321
]
NOT_OURS = [
    *(b"localhost:0", b"localhost:65536", b"localhost:99999999", b"127.0.0.1:", b"", b"\xff\xfe:4321"),
    *(b"evil.example:4321", b"evil.example", b"localhost.evil.example:4321", b"evil-localhost:4321"),
    *(b"localhost.:4321", b"foo.localhost:4321", b"127.0.0.1.nip.io:4321", b"127.0.0.2:4321", b"127.1:4321"),
    *(b"2130706433:4321", b"0x7f000001:4321", b"0.0.0.0:4321", b"[::]:4321", b"::1:4321", b"[::ffff:127.0.0.1]:4321"),
    *(b"192.168.1.10:4321", b"user@localhost:4321", b"localhost:4321@evil.example", b"localhost:4321, evil.example"),
    *(b"localhost:4321\x00", b"localhost/:4321", b" localhost:4321"),
]


async def test_only_names_of_this_machine_are_hosts() -> None:
    assert {host: await status((b"host", host), AUTHORIZED) for host in OURS} == dict.fromkeys(OURS, 200)
    assert {host: await status((b"host", host), AUTHORIZED) for host in NOT_OURS} == dict.fromkeys(NOT_OURS, 421)
    assert await status(AUTHORIZED) == 421
    assert await status(HOST, HOST, AUTHORIZED) == 421
    assert await status((b"host", b"evil.example"), path="/health") == 421, "the host comes before the key"
    assert await status((b"host", b"box.lan:4321"), AUTHORIZED, hosts={"Box.lan"}) == 200
    assert await status(HOST, AUTHORIZED, hosts={"box.lan"}) == 421


@pytest.mark.parametrize(
    "origin", [b"http://evil.example", b"null", b"http://localhost:4321", b"", b"vscode-webview://x"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_no_web_page_may_ask(origin: bytes, method: str) -> None:
    for path in ("/v1/models", "/health"):
        assert await status(HOST, (b"origin", origin), AUTHORIZED, path=path, method=method) == 403


@pytest.mark.parametrize(
    "authorization",
    [
        *(None, b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Bearer \xff\xfe", KEY.encode()),
        *(f"Bearer {key}".encode() for key in (KEY + "x", KEY[:-1], "x" + KEY, KEY.upper(), f"{KEY}, Bearer {KEY}")),
        f"Basic {KEY}".encode(),
    ],
)
async def test_a_wrong_key(authorization: bytes | None) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization)]
    for path in ("/v1/models", "/metrics", "/ps", "/nope", "/load", "/health/"):
        assert await status(HOST, *headers, path=path) == 401


async def test_right_keys() -> None:
    """One right key is enough: clients with several servers send all their keys."""
    other = b"sk-of-another-server"
    assert await status(HOST, (b"authorization", f"bearer {KEY}".encode())) == 200
    assert await status(HOST, IN_ITS_OWN_HEADER) == 200
    for wrong in (b"", b"wrong", f"Bearer {KEY}".encode(), KEY.encode()[:-1]):
        assert await status(HOST, (b"x-api-key", wrong)) == 401
    assert await status(HOST, AUTHORIZED, (b"x-api-key", other)) == 200
    assert await status(HOST, IN_ITS_OWN_HEADER, (b"authorization", b"Bearer " + other)) == 200
    assert await status(HOST, (b"x-api-key", other), (b"authorization", b"Bearer " + other)) == 401
    assert await status(HOST, AUTHORIZED, AUTHORIZED) == 401, "two keys are none"
    assert await status(HOST, IN_ITS_OWN_HEADER, IN_ITS_OWN_HEADER) == 401


async def test_paths_without_a_key_and_paths_for_the_users_own_programs() -> None:
    for path in ("/health", "/v1/health"):
        assert await status(HOST, path=path) == 200
    for path in ("/load", "/stop", "/listen"):
        assert await status(HOST, AUTHORIZED, path=path, method="POST") == 403
    for path in ("/load", "/stop", "/listen", "/health", "/ps", "/nope"):
        assert await status(HOST, AUTHORIZED, path=path, is_local=True) == 200
        assert await status(HOST, path=path, is_local=True) == 401
        assert await status(HOST, AUTHORIZED, (b"origin", b"null"), path=path, is_local=True) == 403
        assert await status((b"host", b"evil.example"), AUTHORIZED, path=path, is_local=True) == 421


async def test_no_web_sockets_and_no_guard_without_a_key() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await Guard(passed, key=KEY)({"type": "websocket", "headers": [], "path": "/"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    with pytest.raises(ValueError, match="key"):
        Guard(passed, key="")
