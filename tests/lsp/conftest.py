"""An editor: pygls's client over the stdin and stdout of a real server, with a daemon of its own."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests import daemons

URI = "file:///project/example.py"


class Editor:
    """One window with one file."""

    def __init__(self, client: LanguageClient) -> None:
        self.client = client
        self.said: list[str] = []
        self._version = 0
        client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self.said.append(params.message))

    def open(self, text: str) -> None:
        item = types.TextDocumentItem(URI, "python", self._version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def edit(self, line: int, column: int, text: str) -> None:
        """Insert text."""
        self._version += 1
        at = types.Position(line, column)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), text)
        document = types.VersionedTextDocumentIdentifier(self._version, URI)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def ask(self, line: int, column: int) -> Any:
        """The items at a cursor."""
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
            types.TextDocumentIdentifier(URI),
            types.Position(line, column),
        )
        return await self.client.text_document_inline_completion_async(params)


Start = Callable[..., Any]


@pytest.fixture
def editor(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a server and an editor on it: `async with editor() as e`; encodings as the editor offers them."""

    @asynccontextmanager
    async def start(*arguments: str, encodings: tuple[str, ...] = ()) -> AsyncIterator[Editor]:
        with daemons.short_home(monkeypatch):
            client = LanguageClient("editor", "1")
            found = Editor(client)
            await client.start_io(sys.executable, "-P", "-c", daemons.PROGRAM, "lsp", "--threads", "1", *arguments)
            general = types.GeneralClientCapabilities(position_encodings=list(encodings) or None)
            asked = types.InitializeParams(types.ClientCapabilities(general=general), root_uri="file:///project")
            result = await client.initialize_async(asked)
            assert result.capabilities.inline_completion_provider
            client.initialized(types.InitializedParams())
            try:
                yield found
            finally:
                await client.shutdown_async(None)
                client.exit(None)
                await client.stop()  # type: ignore[no-untyped-call]

    return start
