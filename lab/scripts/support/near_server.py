"""Language server in the process and on the event loop of the editor that it serves."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from lsprotocol import types

from localdflash.code.context.denied import Refusal
from localdflash.lab.bench.lsp_process import Json, LanguageServer
from localdflash.lsp.engine_completer import CompletionClient
from localdflash.lsp.lsp_methods import register
from localdflash.lsp.lsp_server import SuggestionServer
from localdflash.lsp.request_context import EditorContext
from localdflash.lsp.typing_pace import TypingPace
from localdflash.server.engine_spec import EngineSpec


class _Alone(EditorContext):
    """Context of only the open file, so that no thread reads files."""

    def start(self, on_indexed: Callable[[], None]) -> None:
        """See `EditorContext`."""

    def refusal(self, uri: str) -> Refusal | None:
        """See `EditorContext`."""
        return None

    async def look_up(self, uri: str, line: int, *, if_far: bool = False) -> bool:
        """See `EditorContext`."""
        return False

    def saved(self, uri: str) -> None:
        """See `EditorContext`."""


class _Server(SuggestionServer):
    """Server that uses a given completion client."""

    def __init__(self, completion_client: CompletionClient) -> None:
        self._client = completion_client
        super().__init__(EngineSpec({}, []))

    def _make_client(self, engine: object) -> tuple[CompletionClient, TypingPace]:
        return self._client, TypingPace()

    def initialized_with(self, params: types.InitializeParams) -> None:
        """See `SuggestionServer`."""
        super().initialized_with(params)
        self._context = _Alone([], self.protocol.documents, lambda _: None)


class NearServer(LanguageServer):
    """Editor's side of a server in this process; each message is handled in a later turn of the event loop."""

    def __init__(self, completion_client: CompletionClient, on_notification: Callable[[str, Any], None]) -> None:
        self._on_notification, self._open, self._number, self._exit_reason = on_notification, {}, 0, ""
        self._server, self._sent = _Server(completion_client), asyncio.Queue[Json]()
        register(self._server)
        self._server.protocol.set_writer(self, include_headers=False)
        self._serving = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        """See `LanguageServer`."""
        self._serving.cancel()
        await self._server.close()

    def write(self, data: bytes) -> None:
        """Handle a message of the server."""
        asyncio.get_running_loop().call_soon(self._handle, json.loads(data))

    def close(self) -> None:
        """Do nothing."""

    def _send(self, message: Json) -> None:
        self._sent.put_nowait(json.loads(json.dumps({"jsonrpc": "2.0", **message})))

    async def _serve(self) -> None:
        while True:
            self._server.protocol.receive(await self._sent.get())
            await asyncio.sleep(0)  # a request's handler begins before the next message changes the document
