"""Register the server's requests and notifications: those of LSP and private ones, named as in Copilot if it has them.

* `textDocument/didShowCompletion` {item}, `textDocument/didPartiallyAcceptCompletion` {item, acceptedLength},
  `localdflash/didRejectCompletion` {item}: what became of an item, identified by its command's argument.
* `localdflash.accept` (workspace/executeCommand): run by clients once an item is accepted.
* `localdflash/status`, and the notification `didChangeStatus` to clients that ask for it: see `Tally.status`.
* `localdflash/didUpdateNextEdit`, `localdflash/didRejectNextEdit`: see `next_edit`.
* `localdflash/didUpdateInlineCompletion` {textDocument, position, items}: a longer item for an answered request.
"""

from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from localdflash.lsp import fallback
from localdflash.lsp.lsp_server import ACCEPT, SuggestionServer
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.server.engine_spec import EngineSpec


def create_server(engine: EngineSpec | RemoteServer) -> SuggestionServer:
    """Create a server for one client, with all its features."""
    server = SuggestionServer(engine)
    register(server)
    return server


def register(server: SuggestionServer) -> None:
    """Register the features as functions, because pygls writes attributes on them."""

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.initialized_with(params)
        text = params.capabilities.text_document
        if text is None or text.inline_completion is None:
            fallback.register(server)

    @server.feature(types.INITIALIZED)
    def initialized(_params: types.InitializedParams) -> None:
        server.ready()

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def folders_changed(params: types.DidChangeWorkspaceFoldersParams) -> None:
        server.folders_changed(params.event)

    @server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def inline_completion(params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
        return await server.suggest(params)

    @server.command(ACCEPT)
    def accept(*arguments: Any) -> None:
        match arguments:
            case (str(name),):
                server.accepted(name)
            case _:
                raise JsonRpcInvalidParams(f"{ACCEPT}: expected one argument, the id of a suggestion")

    @server.feature("localdflash/status")
    def status(_params: Any) -> dict[str, Any]:
        return server.status()

    @server.feature("textDocument/didShowCompletion")
    def shown(params: Any) -> None:
        if name := _name(params):
            server.tally.displayed(name)

    @server.feature("textDocument/didPartiallyAcceptCompletion")
    def partly_accepted(params: Any) -> None:
        if name := _name(params):
            server.accepted(name)

    @server.feature("localdflash/didRejectCompletion")
    def rejected(params: Any) -> None:
        if name := _name(params):
            for session in server.sessions.values():
                session.dismiss(name)

    @server.feature("localdflash/didRejectNextEdit")
    def next_edit_rejected(params: Any) -> None:
        uri = _get(_get(params, "textDocument"), "uri")
        if isinstance(uri, str):
            server.next_edits.refused(uri)


def _name(params: Any) -> str | None:
    """Return the name of the item that a notification is about."""
    item = _get(params, "item")
    arguments = _get(_get(item, "command"), "arguments")
    known = isinstance(arguments, list | tuple) and arguments and isinstance(arguments[0], str)
    return arguments[0] if known else None


def _get(value: Any, name: str) -> Any:
    """Return a member of what pygls makes of a message that it has no type for."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
