"""An editor: pygls' client of a server in this process, with a scripted or a real daemon."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from localdflash.base.files import paths
from localdflash.lab.scripts.support import instant_engine
from localdflash.lab.scripts.support.instant_engine import Oracle
from localdflash.lsp.lsp_methods import create_server
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.models.config import load_config
from localdflash.server.engine_spec import EngineSpec
from tests.lsp.wire import accepting, in_thread
from tests.support import daemons

URI = "file:///project/example.py"


class Editor:
    def __init__(self, client: LanguageClient) -> None:
        self.client = client
        self.said: list[str] = []
        self.updates: list[Any] = []
        self.statuses: list[Any] = []
        self.version = 0
        self.capabilities: types.ServerCapabilities

        @client.feature(types.WINDOW_SHOW_MESSAGE)  # type: ignore[untyped-decorator]
        def said(message: types.ShowMessageParams) -> None:
            self.said.append(message.message)

        @client.feature("localdflash/didUpdateInlineCompletion")  # type: ignore[untyped-decorator]
        def updated(update: Any) -> None:
            self.updates.append(update)

        @client.feature("didChangeStatus")  # type: ignore[untyped-decorator]
        def told(status: Any) -> None:
            self.statuses.append(status)

    def open(self, text: str, uri: str = URI) -> None:
        item = types.TextDocumentItem(uri, "python", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def close(self, uri: str = URI) -> None:
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    def edit(self, line: int, column: int, text: str, *, removed: int = 0, uri: str = URI) -> None:
        """Put text at a place, instead of some characters after it."""
        extent = types.Range(types.Position(line, column), types.Position(line, column + removed))
        self._change([types.TextDocumentContentChangePartial(extent, text)], uri)

    def type(self, line: int, column: int, text: str) -> None:
        """Put text at a place, a character a change, in one notification."""
        places = [types.Position(line, column + index) for index in range(len(text))]
        changes = zip(places, text, strict=True)
        self._change([types.TextDocumentContentChangePartial(types.Range(at, at), key) for at, key in changes], URI)

    def _change(self, changes: list[types.TextDocumentContentChangePartial], uri: str) -> None:
        self.version += 1
        document = types.VersionedTextDocumentIdentifier(self.version, uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [*changes]))

    async def ask(self, line: int, column: int, *, uri: str = URI, manual: bool = False, selected: Any = None) -> Any:
        """The items at a cursor."""
        kind = types.InlineCompletionTriggerKind
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(kind.Invoked if manual else kind.Automatic, selected),
            types.TextDocumentIdentifier(uri),
            types.Position(line, column),
        )
        return await self.client.text_document_inline_completion_async(params)

    def tell(self, method: str, item: types.InlineCompletionItem, **more: Any) -> None:
        """A notification about an item."""
        assert item.command
        about = {"insertText": item.insert_text, "command": {"arguments": list(item.command.arguments or ())}}
        self.client.protocol.notify(method, {"item": about, **more})

    async def status(self) -> Any:
        """Return the status line."""
        return await self.client.protocol.send_request_async("localdflash/status", {})


Start = Callable[..., Any]


@pytest.fixture
def editor(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a server in this process and an editor on it: `async with editor() as e`.

    `oracle` is a text that a scripted engine knows (default: a daemon with the embedded pair); `delay` are milliseconds
    between its lines; `options` are the initializationOptions.
    """
    monkeypatch.setenv("LOCALDFLASH_MODEL_ROWS", "fast")  # to certify rows takes longer than these tests

    @asynccontextmanager
    async def start(
        model: str = "",
        *,
        encodings: tuple[str, ...] = (),
        options: Any = None,
        oracle: str = "",
        delay: float = 0.0,
        root: str = "file:///project",
        inline: bool = True,
        home: Path | None = None,
    ) -> AsyncIterator[Editor]:
        with (
            nullcontext(home) if home else daemons.short_home(monkeypatch),
            in_thread(oracle_serving(oracle, delay)) if oracle else nullcontext(),
            socket.create_server(("127.0.0.1", 0)) as listener,
        ):
            engine = RemoteServer.of(load_config(), model) or EngineSpec({"pair": model} if model else {"threads": 1})
            async with accepting(lambda: create_server(engine), listener):
                client = LanguageClient("editor", "1")
                found = Editor(client)
                await client.start_tcp("127.0.0.1", listener.getsockname()[1])
                shown = types.InlineCompletionClientCapabilities(dynamic_registration=False) if inline else None
                capabilities = types.ClientCapabilities(
                    general=types.GeneralClientCapabilities(position_encodings=list(encodings) or None),
                    text_document=types.TextDocumentClientCapabilities(inline_completion=shown),
                )
                asked = types.InitializeParams(capabilities, root_uri=root, initialization_options=options)
                found.capabilities = (await client.initialize_async(asked)).capabilities
                assert found.capabilities.inline_completion_provider
                client.initialized(types.InitializedParams())
                try:
                    yield found
                finally:
                    await client.shutdown_async(None)
                    client.exit(None)
                    await client.stop()  # type: ignore[no-untyped-call]
                    client.protocol.writer.close()  # type: ignore[union-attr]

    return start


@asynccontextmanager
async def oracle_serving(text: str, delay: float) -> AsyncIterator[None]:
    """Run an instant engine that knows a text."""
    oracle = Oracle([text], delay / 1e3)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await oracle.connected(reader, writer)
        finally:
            writer.transport.abort()

    async with instant_engine.serving(connected, paths.daemon_socket()):
        yield


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, which has to come true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
