"""The language server. Its items replace the line up to the cursor, so that clients can trim typed text."""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from localdflash import __version__
from localdflash.code.next_edit.line_changes import LineChange
from localdflash.code.next_edit.trail import LineEdit
from localdflash.lsp.closers import closers_after, closes_again
from localdflash.lsp.document import Document, LineColumn, line_feeds
from localdflash.lsp.engine_completer import CompletionClient, DaemonCompleter, Event, Timings
from localdflash.lsp.lsp_settings import LspSettings, RemoteServer
from localdflash.lsp.lsp_status import SuggestionOrigin, Tally, silence_reason
from localdflash.lsp.next_edit import NextEdits
from localdflash.lsp.protocol import DocumentProtocol
from localdflash.lsp.request_context import EditorContext, path_of
from localdflash.lsp.session import Cursor, Pulse, Session, SuggestionOffer
from localdflash.lsp.suggestions import NEXT_EDIT, Generator
from localdflash.lsp.typing_pace import RemotePace, TypingPace
from localdflash.lsp.usage import FLUSH_SECONDS, KEPT_SECONDS, UsageEvent, UsageLog, position_kind
from localdflash.server.engine_spec import EngineSpec
from localdflash.text.syntax import language_of

ACCEPT = "localdflash.accept"  # the command of an item
STATUS = "didChangeStatus"
UPDATE = "localdflash/didUpdateInlineCompletion"
PAUSE_SECONDS = 1.0  # typing pause after which context is looked up and the next prompt prepared
STATUS_SECONDS = 0.5  # shortest time between two status notifications


@dataclass(frozen=True)
class ItemTarget:
    """Range that an item replaces. `head`: the item's text before the suggestion, if `selected` a popup menu's item."""

    range: types.Range
    head: str
    closers: str = ""  # closers that the editor added after the range
    language: str = ""
    selected: bool = False

    def item(self, offer: SuggestionOffer) -> types.InlineCompletionItem:
        """Return an offer as an LSP item, whose command reports acceptance. Closers that it repeats are replaced."""
        command = types.Command(title="Accepted", command=ACCEPT, arguments=[offer.suggestion.name])
        start, end = self.range.start, self.range.end
        if self.closers and closes_again(self.language, self.head, self.closers, offer.text):
            end = types.Position(end.line, end.character + len(self.closers))
        return types.InlineCompletionItem(
            insert_text=self.head + offer.text, range=types.Range(start, end), command=command
        )


class SuggestionServer(LanguageServer):
    """Server for one client, which is one editor window."""

    protocol: DocumentProtocol

    def __init__(self, engine: EngineSpec | RemoteServer, usage: Path | None = None) -> None:
        super().__init__("localdflash", __version__, protocol_cls=DocumentProtocol)
        self.settings = LspSettings()
        self._engine = engine
        self.tally = Tally()
        self._usage = UsageLog(usage)
        self.sessions: dict[str, Session] = {}
        self._completer, self.pace = self._make_client(engine)
        self._pulse = Pulse()
        self._generator = Generator(self._completer, self._on_generation, self.pace.answered, self._on_answer_end)
        self._predictor, _ = self._make_client(engine)  # for next edits, on a connection of its own
        self.next_edits = NextEdits(
            self.protocol.notify, self._spawn, lambda uri: self.completable(uri) is not None, self._predict
        )
        self._active: Session | None = None
        self._context = EditorContext([], self.protocol.documents, self._warn)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sent_status: dict[str, Any] = {}  # the status sent last; only changes are sent
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.protocol.on_open = self._opened
        self.protocol.on_change = self._changed
        self.protocol.on_close = self._closed

    def _make_client(self, engine: EngineSpec | RemoteServer) -> tuple[CompletionClient, TypingPace]:
        if isinstance(engine, EngineSpec):
            return DaemonCompleter(engine, self._log, self._trouble), TypingPace()
        from localdflash.lsp.remote.remote_completer import RemoteCompleter  # only if needed: the import takes 0.1 s

        return RemoteCompleter(engine, self._log, self._trouble), RemotePace()

    def initialized_with(self, params: types.InitializeParams) -> None:
        """Read the client's capabilities and options, before the server announces its capabilities."""
        self._loop = asyncio.get_running_loop()
        self.settings, wrong = LspSettings.of(params.initialization_options)
        for line in wrong:
            self._loop.call_later(0, self._warn, line)
        folders = [folder.uri for folder in params.workspace_folders or ()] or [params.root_uri or ""]
        self._context = EditorContext(_folders(folders), self.protocol.documents, partial(self._call_soon, self._warn))
        self.protocol.on_save = self._context.saved

    def ready(self) -> None:
        """Index the workspace once the client is initialized; connect to a remote server."""
        self._context.start(partial(self._call_soon, self._refresh_context))
        if isinstance(self._engine, RemoteServer):
            self._spawn(self._connect())  # detects the server's features before the first request

    def folders_changed(self, change: types.WorkspaceFoldersChangeEvent) -> None:
        """Add and remove folders of the workspace."""
        gone = [path_of(folder.uri) for folder in change.removed]
        self._context.update_folders(_folders([folder.uri for folder in change.added]), gone)

    async def suggest(self, params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
        """Return the suggestions at a cursor."""
        manual = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
        reason = self._silence_reason(params.text_document.uri, manual)
        if reason != self.tally.silence_reason:
            self.tally.silence_reason = reason
            self.show_status()
        if reason:
            return None
        document = self.protocol.documents[params.text_document.uri]
        version, position = document.version, document.position(params.position.line, params.position.character)
        target = _target(document, position, params.context.selected_completion_info)
        offers = await self.offers(document, position, manual=manual, target=target)
        if not offers:
            return None
        if self.settings.pushes_updates and not offers[0].suggestion.ended:
            self._spawn(self._push(document, version, params.position, target, offers[0]))
        return types.InlineCompletionList([target.item(offer) for offer in offers])

    async def offers(
        self, document: Document, position: LineColumn, *, manual: bool, target: ItemTarget | None = None
    ) -> list[SuggestionOffer]:
        """Return the suggestions to show at a position; with `target`, as if its head had replaced its range."""
        session, version = self._session(document), document.version
        before, after = document.around(position)
        if target:
            start, end = target.range.start, target.range.end
            before = document.around(document.position(start.line, start.character))[0] + target.head
            after = document.around(document.position(end.line, end.character))[1]
        closers = target.closers if target else ""
        cursor = Cursor(
            line_feeds(before),
            line_feeds(after)[len(closers) :],
            manual=manual,
            current=lambda: document.version == version and self.protocol.documents.get(document.uri) is document,
            deadline=self.settings.deadline_ms / 1e3 + self.pace.patience,
            patient=target is not None,  # a completion list may hold up the lists of other servers
            grows=self.settings.pushes_updates,
            closers=closers,
        )
        if self._context.is_far(document.uri, position.line):
            looking = self._spawn(self._context.look_up(document.uri, position.line, if_far=True))
            await asyncio.wait((looking,), timeout=self.settings.deadline_ms / 2e3)
        offers = await session.offers(cursor)
        if target and target.selected and re.search(r"\w$", target.head):  # do not lengthen the menu's word
            offers = [offer for offer in offers if not re.match(r"\w", offer.text)]
        language = language_of(document.uri, document.language) or document.language
        origin = SuggestionOrigin(document.uri, language, position_kind(before, after))
        for offer in offers:
            if self.tally.offered(offer.suggestion.name, origin):
                self._count(origin, "suggested")
        if manual and not offers and session.silence_reason:
            message = f"localdflash: {session.silence_reason}"
            self.window_show_message(types.ShowMessageParams(types.MessageType.Info, message))
        return offers

    def completable(self, uri: str) -> Document | None:
        """Return the open document, if it may get automatic suggestions."""
        return None if self._silence_reason(uri, manual=False) else self.protocol.documents[uri]

    def accepted(self, name: str, text: str = "") -> None:
        """Record that a suggestion was accepted. If `text` is still there after KEPT_SECONDS, it counts as kept."""
        origin = self.tally.accepted(name)
        if origin is None:
            return
        self.pace.accepted()
        self.show_status()
        self._count(origin, "accepted")
        if text:
            check = partial(self._count_if_kept, name, origin, text)
            self._timers[f"kept {name}"] = asyncio.get_running_loop().call_later(KEPT_SECONDS, check)

    def status(self) -> dict[str, Any]:
        """See `Tally.status`."""
        return self.tally.status(self._generator.busy)

    def show_status(self) -> None:
        """Send the status soon, at a limited rate."""
        if self.settings.sends_status and "status" not in self._timers:
            self._timers["status"] = asyncio.get_running_loop().call_later(STATUS_SECONDS, self._send_status)

    def _count(self, origin: SuggestionOrigin, event: UsageEvent) -> None:
        self._usage.add(origin.language, origin.kind, event)
        if "usage" not in self._timers:
            self._timers["usage"] = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush_usage)

    def _count_if_kept(self, name: str, origin: SuggestionOrigin, text: str) -> None:
        self._timers.pop(f"kept {name}", None)
        document = self.protocol.documents.get(origin.uri)
        if document and text in line_feeds(document.text):
            self._count(origin, "kept")

    def _flush_usage(self) -> None:
        self._timers.pop("usage", None)
        self._usage.flush()

    async def close(self) -> None:
        """Clean up after the client has gone."""
        self._usage.flush()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        self.next_edits.close()
        self._predictor.close()
        await self._generator.close()
        self._completer.close()
        self._context.close()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Write an internal error to the client's log, instead of showing it to the user at every key."""
        if isinstance(error, JsonRpcInvalidParams):
            return  # the client's mistake; pygls has answered it
        line = f"localdflash: internal error: {source.__name__}: {error!r}"
        self.window_log_message(types.LogMessageParams(types.MessageType.Error, line))

    def _silence_reason(self, uri: str, manual: bool) -> str:
        return silence_reason(self.protocol.documents.get(uri), self._context.refusal(uri), manual=manual)

    def _session(self, document: Document) -> Session:
        session = self.sessions.get(document.uri)
        if session is None:
            session = Session(document.uri, self._generator, self._pulse, self.pace, self._describe)
            self.sessions[document.uri] = session
        if self._active and self._active is not session:
            self._active.end_requests()
        self._active = session
        return session

    def _describe(self, uri: str) -> dict[str, Any]:
        return self._context.describe(uri) | {"document": f"{os.getpid()} {id(self)} {uri}"[:4096]}

    async def _predict(self, uri: str, text: Mapping[str, str], diffs: Sequence[str]) -> Sequence[LineChange]:
        """Return the changes that the engine predicts after edits of a document."""
        described = self._context.describe(uri)
        others = [one for one in described["context"] if (one["kind"], one["name"]) != ("edit", described["path"])]
        edits = [{"kind": "edit", "name": described["path"], "text": diff} for diff in diffs]
        body = {**described, **text, "context": [*others, *edits], "mode": "edit"}
        async with aclosing(self._predictor.complete(body)) as events:
            return [change async for event in events for change in event.get("changes", ())]

    async def _push(
        self, document: Document, version: int, position: types.Position, target: ItemTarget, offer: SuggestionOffer
    ) -> None:
        """Send an offer again whenever it grows."""
        session = self.sessions.get(document.uri)
        while session and (text := await session.growth(offer, lambda: document.version == version)):
            offer = replace(offer, text=text)
            identifier = types.VersionedTextDocumentIdentifier(version=version, uri=document.uri)
            update = {"textDocument": identifier, "position": position, "items": [target.item(offer)]}
            self.protocol.notify(UPDATE, update)

    def _opened(self, document: Document) -> None:
        self._leave(document.uri)  # the document may have been open already
        self._context.opened(document.uri)
        if self.settings.sends_next_edits:
            self.next_edits.opened(document)

    def _changed(self, document: Document, changes: Sequence[LineEdit]) -> None:
        self._context.changed(document, changes)
        now = asyncio.get_running_loop().time()
        self.pace.key(now)
        if session := self.sessions.get(document.uri):
            shown = session.shown
            inserted = session.changed(line_feeds(document.text))
            # Several changes are keys that were typed quickly. One may be a line end and the indentation behind it.
            if shown and len(changes) == 1 and len(inserted.strip()) > 1:
                self.accepted(shown.name, inserted.strip())  # clients do not report every accepted part
        self.next_edits.edited(document, changes)
        self._pause(document.uri, PAUSE_SECONDS)

    def _closed(self, uri: str) -> None:
        if timer := self._timers.pop(uri, None):
            timer.cancel()
        self._leave(uri)
        self.next_edits.closed(uri)
        self._context.closed(uri)

    def _leave(self, uri: str) -> None:
        if session := self.sessions.pop(uri, None):
            session.end_requests()
            self._active = None if self._active is session else self._active

    def _pause(self, uri: str, seconds: float) -> None:
        if timer := self._timers.pop(uri, None):
            timer.cancel()
        self._timers[uri] = asyncio.get_running_loop().call_later(seconds, lambda: self._spawn(self._prepare(uri)))

    def _refresh_context(self) -> None:
        """Look up context again for all open documents, because the workspace has been indexed since."""
        for uri in self.protocol.documents:
            self._pause(uri, 0)

    async def _prepare(self, uri: str) -> None:
        """Look up context in a typing pause, and have the engine read the prompt if it changed."""
        session = self.sessions.get(uri)
        if session is None or self.completable(uri) is None:
            return  # without a request the cursor's position is unknown
        is_new = await self._context.look_up(uri, session.line)
        if session is self._active:
            session.prepare_prompt(is_new)

    async def _connect(self) -> None:
        self.tally.model = await self._completer.model()
        self.show_status()

    def _on_generation(self) -> None:
        self._pulse.beat()
        self.show_status()

    def _on_answer_end(self, ended: Event) -> None:
        self.next_edits.has_model = ended.get("finish") == NEXT_EDIT
        rate = ended.get("timings", Timings()).get("predicted_per_second")
        self.tally.tau, self.tally.tokens_per_second = ended.get("tau"), rate or self.tally.tokens_per_second
        if model := ended.get("model"):
            self.tally.model = f"{model}{self._completer.model_suffix}"

    def _trouble(self, line: str) -> None:
        self.tally.trouble, self.tally.model = line, ""  # the next server may have another model
        if line:
            self._warn(line)
        self.show_status()

    def _send_status(self) -> None:
        self._timers.pop("status", None)
        if self._sent_status != (status := self.status()):
            self._sent_status = status
            self.protocol.notify(STATUS, status)

    def _warn(self, line: str) -> None:
        self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, f"localdflash: {line}"))

    def _log(self, line: str) -> None:
        """Write a line to the client's log."""
        self.window_log_message(types.LogMessageParams(types.MessageType.Info, f"localdflash: {line}"))

    def _call_soon(self, call: Callable[..., None], *arguments: str) -> None:
        """Schedule a method on the event loop, from any thread."""
        assert self._loop
        self._loop.call_soon_threadsafe(call, *arguments)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Start a task that is cancelled when the connection closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _target(document: Document, position: LineColumn, selected: types.SelectedCompletionInfo | None) -> ItemTarget:
    """Return the line up to the cursor, or the range of the selected item of a popup menu."""
    if selected:
        return ItemTarget(selected.range, selected.text, selected=True)
    start, end = types.Position(position.line, 0), types.Position(position.line, document.client_column(position))
    line, language = document.line(position.line), language_of(document.uri, document.language)
    head, rest = line[: position.column], line[position.column :]
    return ItemTarget(types.Range(start, end), head, closers_after(language, head, rest), language)


def _folders(uris: Sequence[str]) -> list[Path]:
    """Return the folders at these URIs, without the disk's root: to index it takes a minute and 500 MB."""
    return [path for path in map(path_of, uris) if path and path.is_dir() and path.resolve() != path.resolve().parent]
