"""When the next edit is proposed, and how it travels. What it is, `localdflash.code.next_edit` says.

LSP 3.18 has no message for it. To clients that ask for it (`nextEdit` in their initializationOptions) goes, `PAUSE`
seconds after a change and at once after an accepted proposal, the notification `localdflash/didUpdateNextEdit`
{textDocument, edit: {range, newText}}: an edit for just that version. A client shows it where nothing else is shown,
drops it at the next change, and says `localdflash/didRejectNextEdit` {textDocument} where the user sent it away.
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
PAUSE = 0.5  # seconds without a change
LARGEST = 400_000  # characters of a document

Send = Callable[[str, Any], None]
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class _Followed:
    """A document whose edits are followed."""

    def __init__(self, language: str, text: str) -> None:
        self.trail, self.proposer = EditTrail(text), Proposer(language)
        self.timer: asyncio.TimerHandle | None = None
        self.at_work = asyncio.Lock()

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something after a pause, unless something else is to be done before."""
        self.stop()
        self.timer = asyncio.get_running_loop().call_later(seconds, then)

    def stop(self) -> None:
        """Do nothing."""
        if self.timer:
            self.timer.cancel()
            self.timer = None


class NextEdits:
    """The next edits of a client's documents. `allowed`: whether a document may be looked at."""

    def __init__(self, send: Send, spawn: Spawn, allowed: Callable[[str], bool]) -> None:
        self._send, self._spawn, self._allowed = send, spawn, allowed
        self._followed: dict[str, _Followed] = {}

    def opened(self, document: Document) -> None:
        """Follow a document from here on, if it is in a language whose syntax says enough."""
        self.closed(document.uri)
        language = language_of(document.uri, document.language)
        if language in LANGUAGES and document.size <= LARGEST:
            self._followed[document.uri] = _Followed(language, line_feeds(document.text))

    def edited(self, document: Document, line: int, old: Sequence[str], new: Sequence[str]) -> None:
        """Take note of one change."""
        if document.size > LARGEST:
            self.closed(document.uri)
        elif followed := self._followed.get(document.uri):
            followed.trail.edited(line, old, new, line_feeds(document.text))

    def changed(self, document: Document) -> None:
        """Look for the next edit once nobody has typed for a while, or at once if the last proposal was accepted."""
        if followed := self._followed.get(document.uri):
            accepted = followed.trail.notified()
            followed.wait(0 if accepted else PAUSE, lambda: self._spawn(self._look(document, followed)))

    def closed(self, uri: str) -> None:
        """Forget a document."""
        if followed := self._followed.pop(uri, None):
            followed.stop()

    def close(self) -> None:
        """Forget all of them."""
        for uri in [*self._followed]:
            self.closed(uri)

    def refused(self, uri: str) -> None:
        """Take note that the user sent a proposal away."""
        if followed := self._followed.get(uri):
            followed.trail.refuse()

    async def _look(self, document: Document, followed: _Followed) -> None:
        steps, version = followed.trail.steps(), document.version
        if not steps or not self._allowed(document.uri):
            return
        async with followed.at_work:
            found = await asyncio.to_thread(followed.proposer.propose, steps)
        if found is None or document.version != version or self._followed.get(document.uri) is not followed:
            return
        proposal, source = found
        if not followed.trail.offer(proposal, source.applied(proposal)):
            return
        start, end = (LineColumn(*source.place(offset)) for offset in (proposal.start, proposal.end))
        edit = types.TextEdit(document.range(start, end), proposal.text)
        where = types.VersionedTextDocumentIdentifier(version=version, uri=document.uri)
        self._send(METHOD, {"textDocument": where, "edit": edit})
