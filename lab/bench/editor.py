"""Editor without a window: a buffer whose changes go to a language server, and its ghost text.

The editor behaves like the plug-ins. `neovim`: each key is a change and a request; an item may grow by
`localdflash/didUpdateInlineCompletion`. `vscode`: the older request is cancelled and nothing is pushed. A suggestion is
checked against the buffer before it is shown; a suggestion for another version or line counts as stale.
"""

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from localdflash.lab.bench.lsp_process import Json, LanguageServer

Style = Literal["neovim", "vscode"]
ENCODINGS = {"neovim": ["utf-8", "utf-16", "utf-32"], "vscode": ["utf-16"]}
CODECS = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
UNIT_BYTES = {"utf-8": 1, "utf-16": 2, "utf-32": 4}  # bytes per code unit, in which LSP counts columns
CANCELLED_CODES = (-32800, -32801, -32802)  # cancelled by the client, content modified, cancelled by the server
DEADLINE_MS = 350


@dataclass
class Trace:
    """Recorded events, times in milliseconds."""

    key_to_request: list[float] = field(default_factory=list)
    request_to_answer: list[float] = field(default_factory=list)  # only the newest request's answer, even if empty
    request_to_text: list[float] = field(default_factory=list)  # the first text of a request, in its answer or pushed
    key_to_shown: list[float] = field(default_factory=list)
    requests: int = 0
    shown: int = 0  # suggestions; a suggestion that grows, or whose text is typed, counts once
    grown: int = 0  # times that a longer text replaced its own beginning
    flicker: int = 0  # times that another text replaced a visible suggestion
    stale: int = 0  # items that no longer fit the buffer; not shown
    late: int = 0  # answers with text that came after a newer request; not shown
    rejected: int = 0  # suggestions that disappeared because another key was typed
    errors: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # text that became visible, each character once


@dataclass
class ShownSuggestion:
    """Suggestion on the screen."""

    item: Json
    ghost: str  # visible text
    since: float  # time when it appeared, in seconds of `perf_counter`
    covered: str = ""  # text after the cursor, such as brackets, that accepting the whole suggestion replaces
    judged: bool = False  # whether the typist has decided to accept or ignore it


@dataclass
class _InlineRequest:
    number: int
    key_at: float
    sent_at: float
    has_text: bool = False


class Editor:
    """Editor of one document. Its event `changed` is set when the ghost text changes.

    Keys raise EngineDisconnect if the server has ended.
    """

    def __init__(self, server: LanguageServer, style: Style, encoding: str, trace: Trace) -> None:
        self._server, self._style, self._encoding, self.trace = server, style, encoding, trace
        self.shown: ShownSuggestion | None = None
        self.changed = asyncio.Event()
        self._uri, self._version = "", 0
        self._before = self._after = ""
        self._request: _InlineRequest | None = None
        self._reported_ids: set[str] = set()
        self._visible = ""

    @property
    def before(self) -> str:
        """Return the text before the cursor."""
        return self._before

    @property
    def text(self) -> str:
        """Return the whole buffer."""
        return self._before + self._after

    def open(self, uri: str, language: str, text: str) -> None:
        """Open a document, with the cursor at its start."""
        self._uri, self._version = uri, 1
        self._before, self._after = "", text
        self._forget_request()
        item = {"uri": uri, "languageId": language, "version": 1, "text": text}
        self._server.notify("textDocument/didOpen", {"textDocument": item})

    def close(self) -> None:
        """Close the document and ignore pending answers."""
        self._forget_request()
        self._server.notify("textDocument/didClose", {"textDocument": {"uri": self._uri}})

    def remove(self, start: int, length: int) -> None:
        """Move the cursor to `start` and remove `length` characters after it."""
        text = self.text
        self._before, self._after = text[:start], text[start:]
        self._forget_request()
        if length:
            end = self._position(text[: start + length])
            self._after = text[start + length :]
            self._change(end, "")

    def type(self, key: str) -> None:
        """Insert the characters of one key, which for Enter include the indentation, and request a suggestion."""
        began = time.perf_counter()
        if self.shown and self.shown.ghost.startswith(key):
            self._trim(key)
        elif self.shown:
            self.trace.rejected += 1
            self._server.notify("localdflash/didRejectCompletion", {"item": self.shown.item})
            self._hide()
        self._insert(key)
        self._request_suggestion(began)

    def accept(self, text: str) -> None:
        """Accept the beginning `text` of the ghost text, or all of it."""
        shown, began = self.shown, time.perf_counter()
        assert shown is not None
        is_complete = text == shown.ghost
        self._insert(text, shown.covered if is_complete else "")
        if not is_complete:
            self._server.notify("textDocument/didPartiallyAcceptCompletion", {"item": shown.item})
        elif command := shown.item.get("command"):
            run = {"command": command["command"], "arguments": command.get("arguments") or []}
            self._server.request("workspace/executeCommand", run, self._on_accept_answer)
        self._trim(text)
        if self.shown:
            self.shown.since, self.shown.judged = began, False
        self._request_suggestion(began)

    def on_pushed(self, params: Json) -> None:
        """Show a longer item for the pending request; ignore an item for another version or position."""
        document = params.get("textDocument") or {}
        current = (self._uri, self._version, self._position(self._before))
        if self._request and (document.get("uri"), document.get("version"), params.get("position")) == current:
            self._show_first(params.get("items"), self._request)

    def _request_suggestion(self, key_at: float) -> None:
        self._server.check()
        if self._request and self._style == "vscode":
            self._server.cancel(self._request.number)
        params = {
            "textDocument": {"uri": self._uri},
            "position": self._position(self._before),
            "context": {"triggerKind": 2},
        }
        request = _InlineRequest(0, key_at, time.perf_counter())
        request.number = self._server.request(
            "textDocument/inlineCompletion", params, lambda result, error: self._on_answer(request, result, error)
        )
        request.sent_at = time.perf_counter()
        self.trace.key_to_request.append((request.sent_at - key_at) * 1e3)
        self.trace.requests += 1
        self._request = request

    def _on_answer(self, request: _InlineRequest, result: Any, error: Json | None) -> None:
        if error is not None:
            if error.get("code") not in CANCELLED_CODES:
                self.trace.errors.append(str(error.get("message")))
            return
        items = result.get("items") if isinstance(result, dict) else result
        if request is not self._request:
            self.trace.late += bool(items)
            return
        self.trace.request_to_answer.append((time.perf_counter() - request.sent_at) * 1e3)
        self._show_first(items, request)

    def _on_accept_answer(self, _result: Any, error: Json | None) -> None:
        if error is not None:
            self.trace.errors.append(str(error.get("message")))

    def _show_first(self, items: Any, request: _InlineRequest) -> None:
        """Show the first item if it fits the buffer; without items, keep the suggestion, as both plug-ins do."""
        if not items:
            return
        typed, covered = self._replaced_text(items[0])
        text = _insert_text(items[0])
        if typed is None or not text.startswith(typed) or not _is_subsequence(covered, text[len(typed) :]):
            self.trace.stale += 1
            return
        if ghost := text[len(typed) :]:
            self._show(items[0], ghost, covered, request)

    def _replaced_text(self, item: Json) -> tuple[str | None, str]:
        """Return the text before and after the cursor that an item replaces; (None, "") if its range is unusable."""
        cursor = self._position(self._before)
        if (span := item.get("range")) is None:
            return "", ""
        start, end = span["start"], span["end"]
        if not start["line"] == end["line"] == cursor["line"]:
            return None, ""
        if not start["character"] <= cursor["character"] <= end["character"]:
            return None, ""
        line, after = self._before.rpartition("\n")[2], self._after.partition("\n")[0]
        size, codec = UNIT_BYTES[self._encoding], CODECS[self._encoding]
        try:
            typed = line.encode(codec, "surrogatepass")[start["character"] * size :].decode(codec, "surrogatepass")
            length = (end["character"] - cursor["character"]) * size
            return typed, after.encode(codec, "surrogatepass")[:length].decode(codec, "surrogatepass")
        except UnicodeDecodeError:  # the range starts or ends inside a character
            return None, ""

    def _show(self, item: Json, ghost: str, covered: str, request: _InlineRequest) -> None:
        now = time.perf_counter()
        if not request.has_text:
            request.has_text = True
            self.trace.request_to_text.append((now - request.sent_at) * 1e3)
        if self.shown and self.shown.ghost == ghost:
            self.shown.item, self.shown.covered = item, covered
            return
        if self.shown and ghost.startswith(self.shown.ghost):
            self.trace.grown += 1
        else:
            self.trace.flicker += self.shown is not None
            self.trace.shown += 1
        self.trace.key_to_shown.append((now - request.key_at) * 1e3)
        visible_before = self._visible.removeprefix(self._before) if self._visible.startswith(self._before) else ""
        self.trace.pieces.append(ghost[len(os.path.commonprefix([visible_before, ghost])) :])  # noqa: RUF071 (characters)
        self._visible = self._before + ghost
        self.shown = ShownSuggestion(item, ghost, now, covered)
        if (name := _id(item)) not in self._reported_ids:
            self._reported_ids.add(name)
            self._server.notify("textDocument/didShowCompletion", {"item": item})
        self.changed.set()

    def _trim(self, text: str) -> None:
        assert self.shown is not None
        self.shown.ghost = self.shown.ghost[len(text) :]
        if not self.shown.ghost:
            self._hide()

    def _hide(self) -> None:
        self.shown = None
        self.changed.set()

    def _forget_request(self) -> None:
        if self._request and self._style == "vscode":
            self._server.cancel(self._request.number)
        self._request = None
        self._visible = ""
        self._hide()

    def _insert(self, text: str, covered: str = "") -> None:
        """Insert a text at the cursor, replacing text after it."""
        start, end = self._position(self._before), self._position(self._before + covered)
        self._before, self._after = self._before + text, self._after.removeprefix(covered)
        self._change(end, text, start=start)

    def _change(self, end: Json, text: str, start: Json | None = None) -> None:
        self._version += 1
        extent = {"start": start or self._position(self._before), "end": end}
        document = {"uri": self._uri, "version": self._version}
        params = {"textDocument": document, "contentChanges": [{"range": extent, "text": text}]}
        self._server.notify("textDocument/didChange", params)

    def _position(self, before: str) -> Json:
        """Return the position after a text, in the negotiated encoding."""
        line = before.rpartition("\n")[2].encode(CODECS[self._encoding], "surrogatepass")
        return {"line": before.count("\n"), "character": len(line) // UNIT_BYTES[self._encoding]}


def _is_subsequence(covered: str, text: str) -> bool:
    """Return whether a text contains these characters in order, as VS Code requires of text after the cursor."""
    remaining = iter(text)
    return all(char in remaining for char in covered)


def _insert_text(item: Json) -> str:
    text = item.get("insertText")
    return str(text.get("value", "")) if isinstance(text, dict) else str(text)


def _id(item: Json) -> str:
    """Return the id that the server gave an item, else its text."""
    command = item.get("command") or {}
    return str((command.get("arguments") or [item.get("insertText")])[0])
