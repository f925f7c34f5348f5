"""Checks of LSP messages before pygls, which only gets valid ones, and the synchronisation of documents.

A document that cannot be kept in sync, because of its size or an invalid change, is dropped until it is opened again.
pygls's own documents are not used: they also split lines at form feeds and U+2028, which corrupts texts.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from localdflash.code.next_edit.trail import LineEdit
from localdflash.lsp.document import Document, Encoding
from localdflash.lsp.framing import NOT_JSON

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
NOT_INITIALIZED = -32002
_WITHOUT_PARAMS = {types.SHUTDOWN, types.EXIT}  # clients send null, {} or nothing

Json = dict[str, Any]
MAX_DOCUMENT_CHARS = 4_000_000  # longest document that is kept


class DocumentProtocol(LanguageServerProtocol):
    """Connection with its open documents, and listeners that are called once `documents` is up to date.

    `on_change` gets all changes of a notification, each relative to the text after the one before.
    `initialized`: the first request was accepted; `exit_code` is set once the client sent `exit`.
    """

    def __init__(self, server: LanguageServer, converter: Any) -> None:
        super().__init__(server, converter)
        # cattrs would convert 5 to "5" and null to "None" for a str field, and true or "1" to 1 for an int field.
        converter.register_structure_hook(str, _structure_str)
        converter.register_structure_hook(int, _structure_int)
        self.exit_code: int | None = None
        self.initialized = asyncio.Event()
        self.documents: dict[str, Document] = {}
        self.on_open: Callable[[Document], None] = lambda document: None
        self.on_change: Callable[[Document, Sequence[LineEdit]], None] = lambda document, changes: None
        self.on_save: Callable[[str], None] = lambda uri: None
        self.on_close: Callable[[str], None] = lambda uri: None

    def receive(self, message: object) -> None:
        """Handle one message from the reader."""
        if message is NOT_JSON:
            self.refuse(None, PARSE_ERROR, "a message is not JSON")
        elif isinstance(message, dict):
            self._dispatch(message)
        else:
            self.refuse(None, INVALID_REQUEST, "expected a JSON-RPC 2.0 message, not a batch")

    def _dispatch(self, message: Json) -> None:
        value, method = message.get("id"), message.get("method")
        request_id = value if isinstance(value, int | str) and not isinstance(value, bool) else None
        is_json_rpc = message.get("jsonrpc") == "2.0" and isinstance(method, str | None)
        if not is_json_rpc or (request_id is None and ("id" in message or method is None)):
            self.refuse(request_id, INVALID_REQUEST, "not a message of JSON-RPC 2.0")
        elif method is None:
            self._on_answer(request_id, message)
        elif request_id is None:
            self._on_notification(method, message)
        else:
            self._on_request(request_id, method, message)

    def log(self, line: str) -> None:
        """Write a line to the editor's log of this server."""
        params = types.LogMessageParams(types.MessageType.Warning, line)
        self.notify(types.WINDOW_LOG_MESSAGE, params)

    @lsp_method(types.EXIT)
    def lsp_exit(self, *_: object) -> None:  # type: ignore[override]
        """Handle `exit`; the reader closes the connection."""
        self.exit_code = 0 if self._shutdown else 1

    def _on_request(self, request_id: int | str, method: str, message: Json) -> None:
        if request_id in self._request_futures:
            self.refuse(request_id, INVALID_REQUEST, "a request with this id is under way")
        elif self._shutdown:
            self.refuse(request_id, INVALID_REQUEST, "the server was shut down")
        elif self.initialized.is_set() == (method == types.INITIALIZE):
            problem = "initialized already" if self.initialized.is_set() else "the first request must be initialize"
            self.refuse(request_id, INVALID_REQUEST if self.initialized.is_set() else NOT_INITIALIZED, problem)
        elif not self._knows(method, request=True):
            self.refuse(request_id, METHOD_NOT_FOUND, f"there is no {method}")
        elif structured := self._structure(method, message, lambda why: self.refuse(request_id, INVALID_PARAMS, why)):
            self.handle_message(structured)
            self.initialized.set()

    def _on_notification(self, method: str, message: Json) -> None:
        if method == types.CANCEL_REQUEST:
            self._on_cancel(message.get("params"))
        elif method != types.EXIT and (
            not self.initialized.is_set() or self._shutdown or not self._knows(method, request=False)
        ):
            return
        elif structured := self._structure(method, message, self.log):
            self.handle_message(structured)
        else:
            self.drop_unreadable(method, _uris(message.get("params")))

    def _on_cancel(self, params: object) -> None:
        """Cancel only requests of the client: pygls keeps the server's own requests in the same table."""
        match params:
            case {"id": int(key) | str(key)} if key in self._request_futures and key not in self._result_types:
                self._handle_cancel_notification(key)

    def _on_answer(self, request_id: int | str | None, message: Json) -> None:
        is_response = ("result" in message) != ("error" in message)
        if request_id is None or request_id not in self._result_types or not is_response:
            return
        if structured := self._structure("", message, self.log):
            self.handle_message(structured)
        elif future := self._request_futures.pop(request_id, None):
            future.set_exception(JsonRpcException("the client's response is invalid"))

    def _knows(self, method: str, *, request: bool) -> bool:
        if method not in self.fm.builtin_features and method not in self.fm.features:
            return False
        kind = self.get_message_type(method)
        return kind is None or hasattr(kind, "id") == request

    def _structure(self, method: str, message: Json, refuse: Callable[[str], None]) -> Any:
        """Return the message as pygls's type for it; None if its parameters are wrong."""
        fields = {name: value for name, value in message.items() if name != "params" or method not in _WITHOUT_PARAMS}
        if method and self.get_message_type(method) is None:
            fields.setdefault("params", None)
        try:
            return self.structure_message(fields)
        except (JsonRpcException, RecursionError):
            refuse(f"{method}: its parameters are not as LSP has them")
            return None

    def refuse(self, request_id: int | str | None, code: int, reason: str) -> None:
        """Send an error response to a request; an id of None means that the input was no valid message."""
        error = {"code": code, "message": f"localdflash: {reason}"}
        self._send_data({"jsonrpc": "2.0", "id": request_id, "error": error})  # pygls would leave out an id of null

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        """Open a document, or replace an open one; drop it if it is too large."""
        item = params.text_document
        if len(item.text) > MAX_DOCUMENT_CHARS:
            self._forget(item.uri, "it is too large for completions")
            return
        chosen = self.workspace.position_encoding
        encoding: Encoding = next((known for known in get_args(Encoding) if known == chosen), "utf-16")
        document = self.documents[item.uri] = Document(item.uri, item.text, item.version, encoding, item.language_id)
        self.on_open(document)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        """Apply one or several edits, each to the result of the previous edit."""
        uri, changes = params.text_document.uri, params.content_changes
        document = self.documents.get(uri)
        if not document:
            return
        document.version, applied = params.text_document.version, list[LineEdit]()
        for change in changes:
            first, old, new = _apply(document, change)
            if document.size > MAX_DOCUMENT_CHARS:
                self._forget(uri, "it has become too large for completions; open it again when it is smaller")
                return
            if old or new:
                applied.append((first, old, new))
        self.on_change(document, applied)

    @lsp_method(types.TEXT_DOCUMENT_DID_SAVE)
    def lsp_text_document__did_save(self, params: types.DidSaveTextDocumentParams) -> None:
        """Report an open document that was saved to `on_save`."""
        if params.text_document.uri in self.documents:
            self.on_save(params.text_document.uri)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        """Close a document."""
        if self.documents.pop(params.text_document.uri, None):
            self.on_close(params.text_document.uri)

    def drop_unreadable(self, method: str, uris: Collection[str]) -> None:
        """Drop the documents that an unusable notification names; all of them if it names none."""
        if method in (types.TEXT_DOCUMENT_DID_OPEN, types.TEXT_DOCUMENT_DID_CHANGE):
            for uri in uris or list(self.documents):
                self._forget(uri, "a message about it could not be read; open it again")

    def _forget(self, uri: str, reason: str) -> None:
        self.log(f"{uri}: {reason}")
        if self.documents.pop(uri, None):
            self.on_close(uri)


def _uris(params: object) -> list[str]:
    match params:
        case {"textDocument": {"uri": str(uri)}}:
            return [uri]
    return []


def _structure_str(value: object, kind: Callable[[str], str]) -> str:
    """Convert a JSON value to str or an enumeration of strings; refuse other types."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return kind(value)


def _structure_int(value: object, kind: Callable[[Any], int]) -> int:
    """Convert a JSON value to int, an enumeration of ints, or bool, an int in Python. Lua may write 1 as 1.0."""
    if isinstance(value, bool) == (kind is bool) and isinstance(value, int | float) and value == int(value):
        return kind(value if kind is bool else int(value))
    raise TypeError("not a whole number, or not true or false")


def _apply(document: Document, change: types.TextDocumentContentChangeEvent) -> LineEdit:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return document.replace_all(change.text)
    start, end = change.range.start, change.range.end
    places = document.position(start.line, start.character), document.position(end.line, end.character)
    return document.replace(*places, change.text)
