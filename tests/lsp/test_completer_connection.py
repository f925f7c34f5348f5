"""The language server's connection to a scripted daemon, which dies at any point or sends invalid answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.lab.scripts.support.instant_engine import serving
from localdflash.lsp import engine_completer as module
from localdflash.lsp.engine_completer import DaemonCompleter
from localdflash.server.engine_spec import EngineSpec
from tests.lsp.desk import settled
from tests.support import daemons

pytestmark = [
    pytest.mark.transport,
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = {"index": 0, "text": "x", "tokens": 1, "confidence": 0.9}
END = {"index": 0, "text": "", "finish": "line", "tokens": 1, "confidence": 0.9, "tau": 1.0}


def events(*lines: object) -> bytes:
    return b"".join(chunk(f"data: {json.dumps(line)}\n\n".encode()) for line in lines) + b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Script:
    """A daemon: `answers` are sent to one request after the other; None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers, self.connections = list(answers), 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                await reader.readexactly(length)
                while self.answers and (said := self.answers.pop(0)):
                    writer.write(said)
                    if said.endswith(b"0\r\n\r\n"):
                        break
                else:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@pytest.fixture(autouse=True)
def _short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with daemons.short_home(monkeypatch):
        yield


@asynccontextmanager
async def scripted(script: Script, client: "Client") -> AsyncIterator[None]:
    async with serving(script.connected, paths.engine_socket()):
        yield
        client.completer.close()
        await settled()


class Client:
    """A completer; counts how often it looks for its daemon."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, connect: Callable[[], object] = lambda: None) -> None:
        self.looked = 0
        self.told: list[str] = []

        def looking(_wanted: EngineSpec, _say: Any) -> Any:
            self.looked += 1
            return connect()

        monkeypatch.setattr(module, "connect", looking)
        self.completer = DaemonCompleter(EngineSpec({}), lambda _: None, self.told.append)

    async def ask(self) -> str:
        return "".join([event["text"] async for event in self.completer.complete({"prefix": "x"})])


async def test_one_connection_serves_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    script, client = Script(*[HEAD + events(PIECE, END)] * 3), Client(monkeypatch)
    async with scripted(script, client):
        assert [await client.ask() for _ in range(3)] == ["x"] * 3
    assert (script.connections, client.looked, client.told) == (1, 1, [])


async def test_a_daemon_that_ends_at_every_request_is_not_started_for_every_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(monkeypatch)
    async with scripted(Script(*[None] * 20), client):
        for _ in range(5):
            assert await client.ask() == ""
    assert client.looked == 2
    (told,) = client.told
    assert str(paths.engine_log()) in told


async def test_a_daemon_that_ends_within_an_answer_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    client = Client(monkeypatch)
    half = HEAD + chunk(f"data: {json.dumps(PIECE)}\n\n".encode())
    async with scripted(Script(half, None, half, None, HEAD + events(PIECE, END)), client):
        assert [await client.ask() for _ in range(3)] == ["x"] * 3
    first, last = client.told
    assert first
    assert last == ""


@pytest.mark.parametrize(
    "nonsense",
    [
        HEAD + chunk(b"data: {nonsense\n\n") + b"0\r\n\r\n",
        HEAD + events({"index": -1, "text": "x", "confidence": 0.5}),
        HEAD + events({**END, "timings": [], "tau": "x"}),
        HEAD + events({"error": {"message": "no"}}),
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
async def test_an_invalid_answer_is_reported_once(monkeypatch: pytest.MonkeyPatch, nonsense: bytes) -> None:
    client = Client(monkeypatch)
    answers = [part for _ in range(9) for part in (nonsense, None)]
    async with scripted(Script(*answers), client):
        for _ in range(3):
            assert await client.ask() == ""
        (told,) = client.told
        assert told
        assert "\n" not in told


@pytest.mark.parametrize("error", [LocaldflashError("no room"), PermissionError(13, "denied"), KeyError("version")])
async def test_a_failed_start_is_reported_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails() -> None:
        raise error

    client = Client(monkeypatch, fails)
    assert [await client.ask() for _ in range(3)] == [""] * 3
    assert client.looked == 1
    assert len(client.told) == 1
