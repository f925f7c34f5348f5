"""Text synchronisation with our own documents: pygls also splits lines at form feeds and U+2028, which corrupts texts.

A document that cannot be followed, because of its size or an invalid change, is dropped until it is opened again:
nothing is completed in a text that the editor does not have.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import lsp_method

from localdflash.lsp.document import Document, Encoding, LineEdit
from localdflash.lsp.json_rpc import RpcProtocol

MAX_DOCUMENT_CHARS = 4_000_000  # characters of a document that is kept
OnChange = Callable[[Document, int, Sequence[str], Sequence[str]], None]


class DocumentProtocol(RpcProtocol):
    """The open documents, and listeners that are called once `documents` is up to date.

    `on_change` gets each change: its first line, the lines removed and added. `on_changed` is called after all changes.
    """

    def __init__(self, server: LanguageServer, converter: Any) -> None:
        super().__init__(server, converter)
        self.documents: dict[str, Document] = {}
        self.on_open: Callable[[Document], None] = lambda document: None
        self.on_change: OnChange = lambda document, first_line, old, new: None
        self.on_changed: Callable[[Document], None] = lambda document: None
        self.on_save: Callable[[str], None] = lambda uri: None
        self.on_close: Callable[[str], None] = lambda uri: None

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        """Open a document; the client's text counts, even if it was open already."""
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
        """Apply one or several edits, each to the result of the one before."""
        uri, changes = params.text_document.uri, params.content_changes
        document = self.documents.get(uri)
        if not document:
            return
        document.version, failed = params.text_document.version, None
        for change in changes:
            first_line, old, new = _apply(document, change)
            if document.size > MAX_DOCUMENT_CHARS:
                self._forget(uri, "it has become too large for completions; open it again when it is smaller")
                return
            try:
                if old or new:
                    self.on_change(document, first_line, old, new)
            except Exception as error:  # a listener's: the text comes first, and the changes behind this one count
                failed = error
        if failed:
            raise failed
        self.on_changed(document)

    @lsp_method(types.TEXT_DOCUMENT_DID_SAVE)
    def lsp_text_document__did_save(self, params: types.DidSaveTextDocumentParams) -> None:
        """Handle that a document was saved."""
        if params.text_document.uri in self.documents:
            self.on_save(params.text_document.uri)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        """Close a document."""
        if self.documents.pop(params.text_document.uri, None):
            self.on_close(params.text_document.uri)

    def lost(self, method: str, uris: Collection[str]) -> None:
        """See RpcProtocol. A document whose change may have been lost is dropped."""
        if method in (types.TEXT_DOCUMENT_DID_OPEN, types.TEXT_DOCUMENT_DID_CHANGE):
            for uri in uris or list(self.documents):
                self._forget(uri, "a message about it could not be read; open it again")

    def _forget(self, uri: str, reason: str) -> None:
        self.log(f"{uri}: {reason}")
        if self.documents.pop(uri, None):
            self.on_close(uri)


def _apply(document: Document, change: types.TextDocumentContentChangeEvent) -> LineEdit:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return document.replace_all(change.text)
    start, end = change.range.start, change.range.end
    places = document.place(start.line, start.character), document.place(end.line, end.character)
    return document.replace(*places, change.text)
