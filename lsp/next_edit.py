"""Timing and messages of next-edit proposals; `localdflash.code.next_edit` decides the edit.

Clients with `nextEdit` in their initializationOptions get the notification `localdflash/didUpdateNextEdit`
{textDocument, edit: {range, newText}}: an edit for that version only, `PAUSE_SECONDS` after a change and at once after
an accepted proposal. A client sends `localdflash/didRejectNextEdit` {textDocument} if the user dismissed it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lsprotocol import types

from localdflash.code.next_edit.propose import Proposer
from localdflash.code.next_edit.source import LANGUAGES
from localdflash.code.next_edit.trail import EditTrail
from localdflash.lsp.document import Document, LineColumn, line_feeds
from localdflash.text.syntax import language_of

METHOD = "localdflash/didUpdateNextEdit"
PAUSE_SECONDS = 0.5  # from the last change to a proposal
MAX_DOCUMENT_CHARS = 400_000  # longer documents get no proposals

Send = Callable[[str, Any], None]
Spawn = Callable[[Coroutine[Any, Any, object]], object]


class _TrackedDocument:
    """Recorded edits of one document, and the timer of its next proposal."""

    def __init__(self, language: str, text: str) -> None:
        self.trail, self.proposer = EditTrail(text), Proposer(language)
        self.timer: asyncio.TimerHandle | None = None
        self.lock = asyncio.Lock()

    def stop(self) -> None:
        """Cancel the timer."""
        if self.timer:
            self.timer.cancel()


class NextEdits:
    """Next-edit proposals for a client's documents. `allowed(uri)`: whether the document may get suggestions."""

    def __init__(self, send: Send, spawn: Spawn, allowed: Callable[[str], bool]) -> None:
        self._send, self._spawn, self._allowed = send, spawn, allowed
        self._tracked: dict[str, _TrackedDocument] = {}

    def opened(self, document: Document) -> None:
        """Track a document, if its language is supported."""
        self.closed(document.uri)
        language = language_of(document.uri, document.language)
        if language in LANGUAGES and document.size <= MAX_DOCUMENT_CHARS:
            self._tracked[document.uri] = _TrackedDocument(language, line_feeds(document.text))

    def edited(self, document: Document, line: int, old: Sequence[str], new: Sequence[str]) -> None:
        """Record one change."""
        if document.size > MAX_DOCUMENT_CHARS:
            self.closed(document.uri)
        elif tracked := self._tracked.get(document.uri):
            tracked.trail.edited(line, old, new, line_feeds(document.text))

    def changed(self, document: Document) -> None:
        """Propose the next edit after a pause, or at once if the last proposal was accepted."""
        if tracked := self._tracked.get(document.uri):
            tracked.stop()
            pause = 0 if tracked.trail.end_notification() else PAUSE_SECONDS  # 0: the last proposal was accepted
            loop = asyncio.get_running_loop()
            tracked.timer = loop.call_later(pause, lambda: self._spawn(self._propose(document, tracked)))

    def closed(self, uri: str) -> None:
        """Forget a document."""
        if tracked := self._tracked.pop(uri, None):
            tracked.stop()

    def close(self) -> None:
        """Forget all documents."""
        for uri in [*self._tracked]:
            self.closed(uri)

    def dismiss(self, uri: str) -> None:
        """Record that the user dismissed a proposal."""
        if tracked := self._tracked.get(uri):
            tracked.trail.reject()

    async def _propose(self, document: Document, tracked: _TrackedDocument) -> None:
        steps, version = tracked.trail.steps(), document.version
        if not steps or not self._allowed(document.uri):
            return
        async with tracked.lock:
            proposed = await asyncio.to_thread(tracked.proposer.propose, steps)
        if proposed is None or document.version != version or self._tracked.get(document.uri) is not tracked:
            return
        proposal, source = proposed
        if not tracked.trail.offer(proposal, source.apply(proposal)):
            return
        start, end = (LineColumn(*source.line_and_column(offset)) for offset in (proposal.start, proposal.end))
        edit = types.TextEdit(document.range(start, end), proposal.text)
        where = types.VersionedTextDocumentIdentifier(version=version, uri=document.uri)
        self._send(METHOD, {"textDocument": where, "edit": edit})
