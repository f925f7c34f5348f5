"""For editors without inline completions: the suggestion as the only item of an ordinary completion list.

The item replaces the word being typed, and sorts after the items of other servers.
"""

import re

from lsprotocol import types

from localdflash.chat.messages import fence
from localdflash.lsp.document import Document, LineColumn
from localdflash.lsp.lsp_server import SuggestionServer

MAX_LABEL_CHARS = 60  # characters of a suggestion that stand in the list
TRIGGERS = [".", "(", "[", "{", " ", "=", ",", ":", "\n"]
_WORD, _DASHED, _DOLLARS = re.compile(r"\w*$"), re.compile(r"[\w-]*$"), re.compile(r"[\w$]*$")
_WORDS = {  # by the editors' names of languages: what is a word to their own filters, where that is more
    **dict.fromkeys(("css", "scss", "less", "html", "lisp", "emacs-lisp", "scheme", "clojure"), _DASHED),
    **dict.fromkeys(("javascript", "javascriptreact", "js", "typescript", "typescriptreact", "php"), _DOLLARS),
}


def register(server: SuggestionServer) -> None:
    """Register `textDocument/completion`."""

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=TRIGGERS))
    async def completion(params: types.CompletionParams) -> types.CompletionList:
        return await _complete(server, params)


async def _complete(server: SuggestionServer, params: types.CompletionParams) -> types.CompletionList:
    document = server.completable(params.text_document.uri)
    if document is None:
        return types.CompletionList(is_incomplete=True, items=[])
    place = document.place(params.position.line, params.position.character)
    offers = await server.offers(document, place, manual=False)
    marked = _shows_markdown(server.client_capabilities)
    items = [_item(document, place, offer.text, marked=marked) for offer in offers]
    return types.CompletionList(is_incomplete=True, items=items)


def _item(document: Document, place: LineColumn, text: str, *, marked: bool) -> types.CompletionItem:
    typed = document.line(place.line)[: place.column]
    word = "".join(_WORDS.get(document.language, _WORD).findall(typed))
    start = LineColumn(place.line, place.column - len(word))
    lines = (word + text).strip().splitlines()
    label = lines[0][:MAX_LABEL_CHARS] + (" …" if len(lines) > 1 or len(lines[0]) > MAX_LABEL_CHARS else "")
    code = fence(word + text, document.language)
    return types.CompletionItem(
        label=label,
        kind=types.CompletionItemKind.Text,  # some parse a Snippet, `$` and all, whatever its format
        detail="localdflash",
        documentation=types.MarkupContent(types.MarkupKind.Markdown, code) if marked else word + text,
        sort_text="\U0010ffff",
        filter_text=lines[0],
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        # Not every editor converts the line ends of a completion.
        text_edit=types.TextEdit(
            document.range(start, place), (word + text).replace("\n", document.line_end(place.line))
        ),
    )


def _shows_markdown(client: types.ClientCapabilities) -> bool:
    """Return whether an item's documentation can be Markdown; clients that do not say get Markdown."""
    asked = client.text_document and client.text_document.completion and client.text_document.completion.completion_item
    formats = asked and asked.documentation_format
    return not formats or types.MarkupKind.Markdown in formats
