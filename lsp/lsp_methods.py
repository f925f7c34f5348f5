"""Register LSP's requests and notifications, and private ones, with Copilot's names where Copilot has them.

From client to server:
* `textDocument/didShowCompletion` {item}, `textDocument/didPartiallyAcceptCompletion` {item},
  `localdflash/didRejectCompletion` {item}. The argument of the item's command is the suggestion's id.
* `localdflash.accept` (workspace/executeCommand) [id]: the user accepted a suggestion.
* `localdflash/status`: see `Tally.status`. `localdflash/didRejectNextEdit`: see `next_edit`.

From server to client, if its initialization options request them:
* `didChangeStatus`: see `Tally.status`. `localdflash/didUpdateNextEdit`: see `next_edit`.
* `localdflash/didUpdateInlineCompletion` {textDocument, position, items}: a longer item for an answered request.
"""

import re
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from localdflash.chat.messages import fence
from localdflash.lsp.document import Document, LineColumn
from localdflash.lsp.lsp_server import ACCEPT, SuggestionServer
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.server.engine_spec import EngineSpec

MAX_LABEL_CHARS = 60  # longest label in a completion list
TRIGGERS = [".", "(", "[", "{", " ", "=", ",", ":", "\n"]
_WORD, _DASHED, _DOLLARS = re.compile(r"\w*$"), re.compile(r"[\w-]*$"), re.compile(r"[\w$]*$")
_WORDS = {  # LSP language id -> pattern of a word, where it is not \w*
    **dict.fromkeys(("css", "scss", "less", "html", "lisp", "emacs-lisp", "scheme", "clojure"), _DASHED),
    **dict.fromkeys(("javascript", "javascriptreact", "js", "typescript", "typescriptreact", "php"), _DOLLARS),
}


def create_server(engine: EngineSpec | RemoteServer, usage: Path | None = None) -> SuggestionServer:
    """Create a server for one client, with all its features. `usage`: file for the counts of suggestions."""
    server = SuggestionServer(engine, usage)
    register(server)
    return server


def register(server: SuggestionServer) -> None:
    """Register the features. They are functions and not methods, because pygls writes attributes on them."""

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.initialized_with(params)
        text = params.capabilities.text_document
        if text is None or text.inline_completion is None:
            register_completion_list(server)

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
            case (str(suggestion),):
                server.accepted(suggestion)
            case _:
                raise JsonRpcInvalidParams(f"{ACCEPT}: expected one argument, the id of a suggestion")

    @server.feature("localdflash/status")
    def status(_params: Any) -> dict[str, Any]:
        return server.status()

    @server.feature("textDocument/didShowCompletion")
    def shown(params: Any) -> None:
        if suggestion := _suggestion_id(params):
            server.tally.shown(suggestion)

    @server.feature("textDocument/didPartiallyAcceptCompletion")
    def partly_accepted(params: Any) -> None:
        if suggestion := _suggestion_id(params):
            server.accepted(suggestion)  # the first accepted part counts like the whole, further parts do not

    @server.feature("localdflash/didRejectCompletion")
    def dismissed(params: Any) -> None:
        if suggestion := _suggestion_id(params):
            for session in server.sessions.values():
                session.dismiss(suggestion)

    @server.feature("localdflash/didRejectNextEdit")
    def next_edit_dismissed(params: Any) -> None:
        uri = _get(_get(params, "textDocument"), "uri")
        if isinstance(uri, str):
            server.next_edits.dismiss(uri)


def _suggestion_id(params: Any) -> str | None:
    """Return the id of the suggestion that a notification names; None if it names none."""
    item = _get(params, "item")
    arguments = _get(_get(item, "command"), "arguments")
    known = isinstance(arguments, list | tuple) and arguments and isinstance(arguments[0], str)
    return arguments[0] if known else None


def _get(value: Any, name: str) -> Any:
    """Return a member of a message for which pygls has no type."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def register_completion_list(server: SuggestionServer) -> None:
    """Register `textDocument/completion`, for editors without inline completions."""

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=TRIGGERS))
    async def completion(params: types.CompletionParams) -> types.CompletionList:
        return await _complete(server, params)


async def _complete(server: SuggestionServer, params: types.CompletionParams) -> types.CompletionList:
    """Return a completion list whose item replaces the word before the cursor; `sort_text` puts the item last."""
    document = server.completable(params.text_document.uri)
    if document is None:
        return types.CompletionList(is_incomplete=True, items=[])
    position = document.position(params.position.line, params.position.character)
    offers = await server.offers(document, position, manual=False)
    markdown = _supports_markdown(server.client_capabilities)
    items = [_list_item(document, position, offer.text, markdown=markdown) for offer in offers]
    return types.CompletionList(is_incomplete=True, items=items)


def _list_item(document: Document, position: LineColumn, text: str, *, markdown: bool) -> types.CompletionItem:
    typed = document.line(position.line)[: position.column]
    word = "".join(_WORDS.get(document.language, _WORD).findall(typed))
    start = LineColumn(position.line, position.column - len(word))
    lines = (word + text).strip().splitlines()
    label = lines[0][:MAX_LABEL_CHARS] + (" …" if len(lines) > 1 or len(lines[0]) > MAX_LABEL_CHARS else "")
    code = fence(word + text, document.language)
    return types.CompletionItem(
        label=label,
        kind=types.CompletionItemKind.Text,  # some editors expand `$` in Snippet items
        detail="localdflash",
        documentation=types.MarkupContent(types.MarkupKind.Markdown, code) if markdown else word + text,
        sort_text="\U0010ffff",
        filter_text=lines[0],
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(  # some editors do not convert its line endings
            document.range(start, position), (word + text).replace("\n", document.line_ending(position.line))
        ),
    )


def _supports_markdown(client: types.ClientCapabilities) -> bool:
    """Return whether an item's documentation can be Markdown; true if the client names no formats."""
    completion = client.text_document and client.text_document.completion
    formats = completion and completion.completion_item and completion.completion_item.documentation_format
    return not formats or types.MarkupKind.Markdown in formats
