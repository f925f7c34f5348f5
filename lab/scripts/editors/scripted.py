"""Language server with scripted completions, for tests of clients: the protocol of `localdflash lsp`, instant answers.

`python -P lab/scripts/editors/scripted.py TEXTS.json [LOG]`: the file is a list of whole documents. A request is
answered from the documents that begin and end as the open document does around the cursor. An item has their text up
to the end of the line or, on an empty line and after the start of a block, up to the next empty line. An automatic
request gets one item, an invoked request up to 3. Closing brackets at the end of the cursor's line that the documents
have later are replaced. LOG gets the messages that a client has to send, one JSON object per line. Requests for tests:
`test/push` {text, back, column} grows the last answer (back: as if for that many versions earlier), `test/next_edit`
{line, start, end, text, back} proposes an edit, `test/tell` sends didChangeStatus with its parameters, `test/set`
{delay_ms, texts} changes the answers, `test/hold` holds answers back until `test/release`, which sends all of them.
"""

import argparse
import asyncio
import json
import re
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

EVENTS = (
    "textDocument/didShowCompletion",
    "textDocument/didPartiallyAcceptCompletion",
    "localdflash/didRejectCompletion",
    "localdflash/didRejectNextEdit",
)


class ScriptedServer(LanguageServer):
    """Language server with scripted completions; state of one client."""

    def __init__(self, texts: list[str], log: Path | None) -> None:
        super().__init__("scripted", "1")
        self.texts, self.log, self.delay = texts, log, 0.0
        self.open = asyncio.Event()  # set while answers may be sent
        self.open.set()
        self.held = 0  # number of answers that wait for `open`
        self.status = {"kind": "Normal", "busy": False, "message": "", "model": "scripted", "tau": 2.9}
        self.status |= {"tokensPerSecond": 41.0, "shown": 0, "accepted": 0}
        self.answered: dict[str, Any] = {}

    def record(self, event: str, **about: Any) -> None:
        """Write a line of the log."""
        if self.log:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **about}) + "\n")

    def answers(self, before: str, after: str) -> list[str]:
        """Return the distinct texts that the documents have between `before` and `after`."""
        found = []
        for text in self.texts:
            if text.startswith(before) and text.endswith(after) and len(before) + len(after) <= len(text):
                rest = text[len(before) : len(text) - len(after)]
                first = rest.partition("\n")[0].rstrip("\r")
                line = before.rpartition("\n")[2].strip()
                several = not line or (first.rstrip() or line).endswith((":", "{"))
                found.append(rest.partition("\n\n")[0] if several else first)
        return list(dict.fromkeys(answer for answer in found if answer))


def items(server: ScriptedServer, params: types.InlineCompletionParams) -> list[types.InlineCompletionItem]:
    """Return the items that answer a request."""
    document = server.workspace.get_text_document(params.text_document.uri)
    position = types.Position(params.position.line, params.position.character)
    offset = document.offset_at_position(position)
    before, after = document.source[:offset], document.source[offset:]
    typed = before.rpartition("\n")[2]
    span = types.Range(types.Position(params.position.line, 0), position)
    found = server.answers(before, after)
    closed = re.match(r"[)\]}]+(?=\n|\Z)", after)
    if not found and closed and (found := server.answers(before, after[closed.end() :])):
        span.end = types.Position(span.end.line, span.end.character + closed.end())
    if params.context.trigger_kind == types.InlineCompletionTriggerKind.Automatic:
        found = found[:1]
    where = {"uri": document.uri, "version": document.version, "position": params.position, "range": span}
    server.answered = where | {"text": typed + "".join(found[:1]), "id": f"{document.version}:0"}
    return [_item(typed + text, span, f"{document.version}:{index}") for index, text in enumerate(found[:3])]


def _item(text: str, span: types.Range, name: str) -> types.InlineCompletionItem:
    command = types.Command(title="accept", command="localdflash.accept", arguments=[name])
    return types.InlineCompletionItem(insert_text=text, range=span, command=command)


def build(texts: list[str], log: Path | None) -> ScriptedServer:
    """Make the server with its handlers."""
    server = ScriptedServer(texts, log)

    @server.feature(types.INITIALIZE)
    def initialize(ls: ScriptedServer, params: types.InitializeParams) -> None:
        ls.record("initialize", options=params.initialization_options, root=params.root_uri)

    @server.feature(types.INITIALIZED)
    def initialized(ls: ScriptedServer, _: types.InitializedParams) -> None:
        ls.record("initialized", encoding=ls.server_capabilities.position_encoding)

    @server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def complete(ls: ScriptedServer, params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
        text = ls.workspace.get_text_document(params.text_document.uri).source
        ls.record("request", kind=params.context.trigger_kind.value, line=params.position.line, text=text)
        found = items(ls, params)
        if ls.delay:
            await asyncio.sleep(ls.delay)
        ls.held += 1
        try:
            await ls.open.wait()
        finally:
            ls.held -= 1
        return types.InlineCompletionList(found) if found else None

    for event in EVENTS:
        server.feature(event)(_recorder(server, event))
    _documents(server)
    _controls(server)
    return server


def _recorder(server: ScriptedServer, event: str) -> Any:
    def record(params: Any) -> None:
        about = {"text": params.item.insertText} if hasattr(params, "item") else {}
        server.record(event.rpartition("/")[2], **about)

    return record


def _documents(server: ScriptedServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(ls: ScriptedServer, params: types.DidOpenTextDocumentParams) -> None:
        ls.record("open", uri=params.text_document.uri, language=params.text_document.language_id)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(ls: ScriptedServer, params: types.DidCloseTextDocumentParams) -> None:
        ls.record("close", uri=params.text_document.uri)

    @server.command("localdflash.accept")
    def accept(ls: ScriptedServer, name: str) -> None:
        ls.record("accept", id=name)


def _controls(server: ScriptedServer) -> None:
    @server.feature("test/push")
    def push(ls: ScriptedServer, params: Any) -> None:
        last = ls.answered
        last["text"] += params.text
        grown = _item(last["text"], last["range"], last["id"])
        document = {"uri": last["uri"], "version": last["version"] - getattr(params, "back", 0)}
        column = getattr(params, "column", last["position"].character)
        position = types.Position(last["position"].line, column)
        about = {"textDocument": document, "position": position, "items": [grown]}
        ls.protocol.notify("localdflash/didUpdateInlineCompletion", about)

    @server.feature("test/next_edit")
    def propose(ls: ScriptedServer, params: Any) -> None:
        (document,) = ls.workspace.text_documents.values()
        where = {"uri": document.uri, "version": document.version - getattr(params, "back", 0)}
        last = getattr(params, "last", params.line)
        start, end = types.Position(params.line, params.start), types.Position(last, params.end)
        edit = types.TextEdit(types.Range(start, end), params.text)
        ls.protocol.notify("localdflash/didUpdateNextEdit", {"textDocument": where, "edit": edit})

    @server.feature("test/tell")
    def tell(ls: ScriptedServer, params: Any) -> None:
        ls.status |= params._asdict()
        ls.protocol.notify("didChangeStatus", ls.status)

    @server.feature("test/set")
    def change(ls: ScriptedServer, params: Any) -> None:
        given = params._asdict()
        ls.delay = given.get("delay_ms", 0) / 1e3
        ls.texts = given.get("texts", ls.texts)

    @server.feature("test/hold")
    def hold(ls: ScriptedServer, _: Any) -> None:
        ls.open.clear()

    @server.feature("test/release")
    async def release(ls: ScriptedServer, _: Any) -> None:
        ls.open.set()
        while ls.held:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # each is sent by a callback of its task

    @server.feature("localdflash/status")
    def status(ls: ScriptedServer, _: Any) -> dict[str, Any]:
        return ls.status


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description="Run a language server with scripted completions on stdin and stdout.")
    parser.add_argument("texts", type=Path, help="JSON list of whole documents")
    parser.add_argument("log", type=Path, nargs="?", help="every message of the client, a JSON object a line")
    given = parser.parse_args()
    build(json.loads(given.texts.read_text("utf-8")), given.log).start_io()


if __name__ == "__main__":
    main()
