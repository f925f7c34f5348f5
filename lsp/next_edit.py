"""Timing and messages of next-edit proposals; the rules of `localdflash.code.next_edit` or a model decide the edit.

Clients with `nextEdit` in their initializationOptions get the notification `localdflash/didUpdateNextEdit`
{textDocument, edit: {range, newText}}: an edit for that version only, `PAUSE_SECONDS` after a change and at once after
an accepted proposal. A client sends `localdflash/didRejectNextEdit` {textDocument} if the user dismissed it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lsprotocol import types

from localdflash.code.next_edit.line_changes import LineChange, Replacement, diff_of, edit_between
from localdflash.code.next_edit.propose import Proposer
from localdflash.code.next_edit.source import LANGUAGES
from localdflash.code.next_edit.trail import EditTrail, LineEdit
from localdflash.lsp.document import Document, LineColumn, line_feeds
from localdflash.text.syntax import language_of

METHOD = "localdflash/didUpdateNextEdit"
PAUSE_SECONDS = 0.5  # from the last change to a proposal
MAX_DOCUMENT_CHARS = 400_000  # longer documents get no proposals
MODEL_LINES = 200  # lines before and after the cursor that a model may see

Send = Callable[[str, Any], None]
Spawn = Callable[[Coroutine[Any, Any, object]], asyncio.Task[Any]]
# Predicts changes by the URI of a document, the text around the cursor, and diffs of the latest edits.
Predict = Callable[[str, Mapping[str, str], Sequence[str]], Awaitable[Sequence[LineChange]]]


class _TrackedDocument:
    """Recorded edits of one document, the timer of its next proposal, and the request to the model."""

    def __init__(self, language: str, text: str) -> None:
        self.trail = EditTrail(text)
        self.proposer = Proposer(language) if language in LANGUAGES else None
        self.timer: asyncio.TimerHandle | None = None
        self.request: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()

    def stop(self) -> None:
        """Cancel the timer and the request."""
        if self.timer:
            self.timer.cancel()
        if self.request:
            self.request.cancel()


class NextEdits:
    """Next-edit proposals for a client's documents. `allowed(uri)`: whether the document may get suggestions.

    If `has_model`, the engine predicts an edit with `predict` where the rules propose none.
    """

    def __init__(self, send: Send, spawn: Spawn, allowed: Callable[[str], bool], predict: Predict) -> None:
        self._send, self._spawn, self._allowed, self._predict = send, spawn, allowed, predict
        self.has_model = False
        self._tracked: dict[str, _TrackedDocument] = {}

    def opened(self, document: Document) -> None:
        """Track a document."""
        self.closed(document.uri)
        if document.size <= MAX_DOCUMENT_CHARS:
            language = language_of(document.uri, document.language)
            self._tracked[document.uri] = _TrackedDocument(language, line_feeds(document.text))

    def edited(self, document: Document, changes: Sequence[LineEdit]) -> None:
        """Record a notification's changes; propose the next edit after a pause, or at once after an accepted one."""
        if document.size > MAX_DOCUMENT_CHARS:
            self.closed(document.uri)
        elif tracked := self._tracked.get(document.uri):
            tracked.stop()
            accepted = tracked.trail.edited(changes, line_feeds(document.text))
            pause, loop = 0 if accepted else PAUSE_SECONDS, asyncio.get_running_loop()
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
            proposed = await asyncio.to_thread(tracked.proposer.propose, steps) if tracked.proposer else None
        if document.version != version or self._tracked.get(document.uri) is not tracked:
            return
        if proposed:
            proposal, source = proposed
            start, end = (source.line_and_column(offset) for offset in (proposal.start, proposal.end))
            self._offer(document, (start, end, proposal.text), source.apply(proposal), proposal.pattern)
        elif self.has_model:
            tracked.request = self._spawn(self._ask_model(document, tracked, steps))  # the next change cancels it

    async def _ask_model(self, document: Document, tracked: _TrackedDocument, steps: Sequence[str]) -> None:
        """Propose the predicted change that is nearest to the cursor."""
        lines, (line, column) = steps[-1].split("\n"), tracked.trail.cursor
        first = max(line - MODEL_LINES, 0)
        before, after = [*lines[first:line], lines[line][:column]], lines[line + 1 : line + 1 + MODEL_LINES]
        text = {"prefix": "\n".join(before), "suffix": "\n".join([lines[line][column:], *after])}
        changes = await self._predict(document.uri, text, [diff_of(*pair) for pair in pairwise(steps)])
        if not changes:
            return
        nearest = min(changes, key=lambda change: abs(first + change.start - line))
        change = nearest._replace(start=first + nearest.start, end=first + nearest.end)
        replaced = tuple(lines[change.start : change.end])
        accepted = "\n".join([*lines[: change.start], *change.lines, *lines[change.end :]])
        if accepted not in steps:  # else it undoes the user's latest edits
            self._offer(document, edit_between(steps[-1], accepted), accepted, (replaced, change.lines))

    def _offer(self, document: Document, edit: Replacement, accepted: str, pattern: Hashable) -> None:
        """Send a proposal, unless the user rejected its pattern before."""
        if self._tracked[document.uri].trail.offer(pattern, accepted):
            start, end, text = edit
            where = types.VersionedTextDocumentIdentifier(version=document.version, uri=document.uri)
            range_ = document.range(LineColumn(*start), LineColumn(*end))
            new = types.TextEdit(range_, text.replace("\n", document.line_ending(start[0])))
            self._send(METHOD, {"textDocument": where, "edit": new})
