"""Text synchronisation with our own documents: pygls also splits lines at form feeds and U+2028, which corrupts texts.

`documents` holds the open files by URI. A document that cannot be followed is dropped, so that nothing is completed in
a text that the editor does not have: one beyond `MAX_DOCUMENT_CHARS`, or one with an invalid change, until it is opened
again or changed as a whole. Any other change of an unknown document is ignored.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, get_args

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import lsp_method

from localdflash.lsp.document import Document, Encoding, LineEdit
from localdflash.lsp.json_rpc import RpcProtocol

MAX_DOCUMENT_CHARS = 4_000_000  # characters of a document that is kept
Change: TypeAlias = types.TextDocumentContentChangeEvent
WholeText: TypeAlias = types.TextDocumentContentChangeWholeDocument
OnChange = Callable[[Document, int, Sequence[str], Sequence[str]], None]

_CHANGES = ("", types.TEXT_DOCUMENT_DID_OPEN, types.TEXT_DOCUMENT_DID_CHANGE)  # "": nobody knows what it was


class DocumentProtocol(RpcProtocol):
    """The open documents, and listeners that are called once `documents` is up to date.

    `on_change` gets each content change: its first line, the lines removed and added, without their ends. The text is
    that after the change, the version that after the whole notification. `on_changed` is called once after all changes.
    """

    def __init__(self, server: LanguageServer, converter: Any) -> None:
        super().__init__(server, converter)
        self.documents: dict[str, Document] = {}
        self._dropped: dict[str, str] = {}  # languages of documents that are open, but not followed
        self.on_open: Callable[[Document], None] = lambda document: None
        self.on_change: OnChange = lambda document, first_line, old, new: None
        self.on_changed: Callable[[Document], None] = lambda document: None
        self.on_save: Callable[[str], None] = lambda uri: None
        self.on_close: Callable[[str], None] = lambda uri: None

    def encoding(self) -> Encoding:
        """Return the unit of columns agreed with the client."""
        chosen = self.workspace.position_encoding
        return next((known for known in get_args(Encoding) if known == chosen), "utf-16")

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        """Open a document; the client's text counts, even if it was open already."""
        item = params.text_document
        self._begin(item.uri, item.text, item.version, item.language_id)

    def _begin(self, uri: str, text: str, version: int, language: str) -> Document | None:
        """Follow a document from this text on; None if it is too large."""
        self._dropped[uri] = language
        if len(text) > MAX_DOCUMENT_CHARS:
            self._forget(uri, "it is too large for completions")
            return None
        del self._dropped[uri]
        document = self.documents[uri] = Document(uri, text, version, self.encoding(), language)
        self.on_open(document)
        return document

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        """Apply one or several edits, each to the result of the one before."""
        uri, changes = params.text_document.uri, params.content_changes
        document = self.documents.get(uri)
        if not document:
            document, changes = self._found_again(params)
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
        self._dropped.pop(params.text_document.uri, None)
        if self.documents.pop(params.text_document.uri, None):
            self.on_close(params.text_document.uri)

    def lost(self, method: str, uris: Collection[str]) -> None:
        """See RpcProtocol. A document whose change may have been lost is dropped."""
        if method in _CHANGES:
            for uri in uris or list(self.documents):
                if method == types.TEXT_DOCUMENT_DID_OPEN:
                    self._dropped[uri] = ""
                self._forget(uri, "a message about it could not be read; open it again")

    def _forget(self, uri: str, reason: str) -> None:
        self.log(f"{uri}: {reason}")
        if document := self.documents.pop(uri, None):
            self._dropped[uri] = document.language
            self.on_close(uri)

    def _found_again(self, params: types.DidChangeTextDocumentParams) -> tuple[Document | None, Sequence[Change]]:
        """Return a dropped document whose whole text was sent, and the changes behind that."""
        item, changes = params.text_document, params.content_changes
        whole = [i for i, change in enumerate(changes) if isinstance(change, WholeText)]
        if item.uri not in self._dropped or not whole:
            return None, ()
        last = whole[-1]
        return self._begin(item.uri, changes[last].text, item.version, self._dropped[item.uri]), changes[last + 1 :]


def _apply(document: Document, change: Change) -> LineEdit:
    if isinstance(change, WholeText):
        return document.replace_all(change.text)
    start, end = change.range.start, change.range.end
    places = document.place(start.line, start.character), document.place(end.line, end.character)
    return document.replace(*places, change.text)
