"""The language server's connection to a scripted daemon, which dies at any point or sends invalid answers."""

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
from tests.chat.asking import END, HEAD, ScriptedServer, chunk, event
from tests.lsp.desk import settled
from tests.support import daemons

pytestmark = [
    pytest.mark.transport,
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

PIECE = {"index": 0, "text": "x", "tokens": 1, "confidence": 0.9}
LAST = {"index": 0, "text": "", "finish": "line", "tokens": 1, "confidence": 0.9, "tau": 1.0}


@pytest.fixture(autouse=True)
def _short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with daemons.short_home(monkeypatch):
        yield


@asynccontextmanager
async def serve_script(script: ScriptedServer, client: "Client") -> AsyncIterator[None]:
    async with serving(script.handle, paths.daemon_socket()):
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

        monkeypatch.setattr(module, "ensure_daemon", looking)
        self.completer = DaemonCompleter(EngineSpec({}), lambda _: None, self.told.append)

    async def ask(self) -> str:
        return "".join([event["text"] async for event in self.completer.complete({"prefix": "x"})])


async def test_a_daemon_that_ends_within_an_answer_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    client = Client(monkeypatch)
    half = HEAD + event(**PIECE)
    async with serve_script(ScriptedServer(half, half, HEAD + event(**PIECE) + event(**LAST) + END), client):
        assert [await client.ask() for _ in range(3)] == ["x"] * 3
    first, last = client.told
    assert first
    assert last == ""


@pytest.mark.parametrize(
    "nonsense",
    [
        HEAD + chunk(b"data: {nonsense\n\n") + END,
        HEAD + event(index=-1, text="x", confidence=0.5) + END,
        HEAD + event(**LAST | {"timings": [], "tau": "x"}) + END,
        HEAD + event(error={"message": "no"}) + END,
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
async def test_an_invalid_answer_is_reported_once(monkeypatch: pytest.MonkeyPatch, nonsense: bytes) -> None:
    client = Client(monkeypatch)
    async with serve_script(ScriptedServer(*[nonsense] * 9), client):
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
