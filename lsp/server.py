"""The language server: inline completions of open documents from the shared engine.

A document has one request at a time: a newer one answers the older with null at once and stops it within one step, and
an answer to a text that has changed meanwhile is null too. Answers replace the line up to the cursor, so that clients
can trim what is typed along.
"""

import asyncio
import os
import re
from importlib.metadata import version

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from localdflash.lsp.document import Document, Place
from localdflash.lsp.engine import Engine
from localdflash.lsp.protocol import DocumentProtocol
from localdflash.server.spawn import Wanted

LONGEST = 96  # tokens
PATIENCE_MS = 350.0  # for an answer's text, once its first step is done: what is there by then is shown
LARGEST = 4_000_000  # characters of a document that is worth completing
_CLOSING = re.compile(r"[\s)\]}\"'`>;:,]*")


class Server(LanguageServer):
    """One client, which is one editor window."""

    protocol: DocumentProtocol

    def __init__(self, wanted: Wanted) -> None:
        super().__init__("localdflash", version("localdflash"), protocol_cls=DocumentProtocol)
        self.engine = Engine(wanted, self._say)
        self._running: dict[str, asyncio.Task[str]] = {}

        @self.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
        async def inline_completion(params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
            return await self.complete(params)  # a function: pygls writes attributes on it

    async def complete(self, params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
        """One item, or nothing."""
        uri = params.text_document.uri
        document = self.protocol.documents.get(uri)
        if document is None:
            return None
        if older := self._running.pop(uri, None):
            older.cancel()
        asked, place = document.version, document.place(params.position.line, params.position.character)
        task = self._running[uri] = asyncio.create_task(self.engine.infill(_question(document, place)))
        try:
            text = await task
        except asyncio.CancelledError:
            if self._running.get(uri) is task:
                task.cancel()
                raise  # the client takes its request back
            return None  # a newer request took its place
        finally:
            if self._running.get(uri) is task:
                del self._running[uri]
        if not text.strip() or document.version != asked:
            return None
        return types.InlineCompletionList([_item(document, place, text)])

    def _say(self, line: str) -> None:
        self.window_show_message(types.ShowMessageParams(types.MessageType.Info, f"localdflash: {line}"))


def _question(document: Document, place: Place) -> dict[str, object]:
    """What to ask the engine: to the end of the line, or at the start of a line to the end of its block."""
    prefix, suffix = document.around(place)
    line = document.line(place.line)
    body: dict[str, object] = {
        "input_prefix": prefix[-LARGEST:],
        "input_suffix": suffix[:LARGEST],
        "n_predict": LONGEST,
        "t_max_predict_ms": PATIENCE_MS,
        "temperature": 0,
        "document": f"{os.getpid()} {document.uri}"[:4096],
    }
    before, after = line[: place.column], line[place.column :]
    if before.strip() or not _CLOSING.fullmatch(after):
        return body | {"stop": ["\n"]}
    return body | {"n_indent": len(before)}


def _item(document: Document, place: Place, text: str) -> types.InlineCompletionItem:
    line = document.line(place.line)[: place.column]
    start = types.Position(place.line, 0)
    end = types.Position(place.line, document.units(place))
    return types.InlineCompletionItem(insert_text=line + text.rstrip(), range=types.Range(start, end))
