"""pygls with our own documents: its line model also splits at form feeds and U+2028, which corrupts what it keeps.

`documents` is what the server knows of open files, by URI. A change of a file that was not opened is ignored.
"""

from typing import Any, get_args

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from localdflash.lsp.document import Document, Encoding


class DocumentProtocol(LanguageServerProtocol):
    """Text synchronisation; all else is pygls's."""

    def __init__(self, server: LanguageServer, converter: Any) -> None:
        super().__init__(server, converter)
        self.documents: dict[str, Document] = {}

    def encoding(self) -> Encoding:
        """What columns count, as agreed with the client."""
        chosen = self.server_capabilities.position_encoding
        return next((known for known in get_args(Encoding) if known == chosen), "utf-16")

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        """A document is open; the client's text is the truth."""
        item = params.text_document
        self.documents[item.uri] = Document(item.uri, item.text, item.version, self.encoding())

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        """One or several edits, each on the result of the one before."""
        if document := self.documents.get(params.text_document.uri):
            for change in params.content_changes:
                _apply(document, change)
            document.version = params.text_document.version

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        """A document is closed."""
        self.documents.pop(params.text_document.uri, None)


def _apply(document: Document, change: types.TextDocumentContentChangeEvent) -> None:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        document.replace_all(change.text)
        return
    start, end = change.range.start, change.range.end
    document.replace(document.place(start.line, start.character), document.place(end.line, end.character), change.text)
