"""Suggestions: texts for an *anchor*, a position in a document, kept while the text typed there agrees with them."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from localdflash.lsp.engine_completer import CompletionClient, Event

STOPPED, FAILED = "stopped", "failed"  # `Suggestion.ended` if the request became obsolete, or the engine failed
MAX_SUGGESTIONS = 256  # per document
MAX_ANCHOR_CHARS = 16_000_000  # characters of a document's distinct anchors, each of which holds the whole text

_names = count(1)


class Anchor(NamedTuple):
    """Position in a document, with the text before it and the text after the cursor of the request."""

    uri: str
    before: str
    after: str


@dataclass(eq=False)
class Suggestion:
    """Text that follows `typed` at an anchor. `ended` is why it is complete; "" while more may come."""

    anchor: Anchor
    typed: str  # text between the anchor and the cursor of the request
    text: str = ""
    confidence: float | None = None  # probability of its first token, if known
    score: float = -math.inf  # higher for a likelier text; known once it has ended
    ended: str = ""
    name: str = field(default_factory=lambda: str(next(_names)))

    def rest(self, typed: str) -> str | None:
        """Return the rest of the suggestion after the typed text, "" at its end; None if the two disagree."""
        whole = self.typed + self.text
        if whole.startswith(typed):
            return whole[len(typed) :]
        return "" if not self.ended and typed.startswith(whole) else None

    def cut_off(self, reason: str) -> None:
        """Drop the incomplete last line, and end a growing suggestion with `reason`."""
        if not self.ended:
            self.text, self.ended = whole_lines(self.text), reason

    def answers(self, typed: str) -> bool:
        """Return whether no new request is needed: the text continues `typed`, may still do so, or is empty."""
        rest = self.rest(typed) if typed.startswith(self.typed) else None
        if not rest:
            is_empty = typed == self.typed and self.ended not in (STOPPED, FAILED)
            return rest is not None and (not self.ended or is_empty)
        return True


class NewestSuggestions:
    """Newest suggestions of a document."""

    def __init__(self) -> None:
        self._newest = deque[Suggestion](maxlen=MAX_SUGGESTIONS)

    def add(self, suggestion: Suggestion) -> None:
        """Add a suggestion, which may still grow."""
        self._newest.append(suggestion)
        while sum(len(one.before) + len(one.after) for one in {one.anchor for one in self._newest}) > MAX_ANCHOR_CHARS:
            self._newest.popleft()

    def find(self, anchor: Anchor, typed: str) -> Suggestion | None:
        """Return the suggestion that fits `typed`; of several, the newest with the longest `typed` of its own."""
        answering = (one for one in reversed(self._newest) if one.anchor == anchor and one.answers(typed))
        return max(answering, key=lambda found: len(found.typed), default=None)


def whole_lines(text: str) -> str:
    """Return the text without its last line, which may be incomplete."""
    return text[: text.rfind("\n") + 1].rstrip()


def whole_words(text: str) -> str:
    """Return the text without its last word, which may be incomplete."""
    words = text.rstrip()
    while words and (words[-1].isalnum() or words[-1] == "_"):
        words = words[:-1]
    return words.rstrip()


def typed_text(text: str, anchor: Anchor) -> str | None:
    """Return the text typed at an anchor in this text; None if the text around the anchor differs."""
    end = len(text) - len(anchor.after)
    if end < len(anchor.before) or not text.startswith(anchor.before) or not text.endswith(anchor.after):
        return None
    return text[len(anchor.before) : end]


CANCELLED = "cancelled"  # `finish` of an answer that the engine stopped for another client
NEXT_EDIT = "next_edit"  # `finish` of the empty answer of a pair that predicts edits instead


class Generator:
    """Runner of one generation at a time; starting another stops it.

    `wake` is called at each start, event and end, `on_first` with the TTFT in seconds, `on_last` with each last event.
    """

    def __init__(
        self,
        completer: CompletionClient,
        wake: Callable[[], None],
        on_first: Callable[[float], None],
        on_last: Callable[[Event], None],
    ) -> None:
        self._completer, self._wake, self._on_first, self._on_last = completer, wake, on_first, on_last
        self._task: asyncio.Task[None] | None = None
        self._connection_lock = asyncio.Lock()  # a stopped request's connection closes before the next one opens
        self.growing: Sequence[Suggestion] = ()
        self.uri = ""  # document of the newest generation

    def start(self, uri: str, body: Mapping[str, object], suggestions: Sequence[Suggestion] = ()) -> None:
        """Request a text for each suggestion. Without suggestions, the engine only reads the prompt."""
        self.stop()
        self.uri, self.growing = uri, suggestions
        self._task = asyncio.create_task(self._run(body, suggestions))
        self._wake()

    def stop(self) -> None:
        """Stop the running generation: at once for the client, within one step for the engine."""
        if self._task:
            self._task.cancel()
        for suggestion in self.growing:
            suggestion.cut_off(STOPPED)
        self._task, self.growing = None, ()

    @property
    def busy(self) -> bool:
        """Return whether a generation is running."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop, and wait until the connection is closed."""
        self.stop()
        async with self._connection_lock:
            return

    async def _run(self, body: Mapping[str, object], suggestions: Sequence[Suggestion]) -> None:
        started, is_waiting = time.monotonic(), bool(suggestions)
        try:
            async with self._connection_lock, aclosing(self._completer.complete(body)) as events:
                async for event in events:
                    if is_waiting:
                        is_waiting = False
                        self._on_first(time.monotonic() - started)
                    self._add_event(event, suggestions)
                    self._wake()
        finally:
            for suggestion in suggestions:  # those that have ended stay as they are
                suggestion.cut_off(FAILED)
            self._wake()

    def _add_event(self, event: Event, suggestions: Sequence[Suggestion]) -> None:
        index = event["index"]
        if index >= len(suggestions):
            return
        suggestion = suggestions[index]
        if not suggestion.text:
            suggestion.confidence = event.get("confidence")
        suggestion.text += event["text"]
        finish = event.get("finish")
        if finish == CANCELLED:
            suggestion.cut_off(FAILED)
        elif finish:
            suggestion.ended, suggestion.score = finish, event.get("score", -math.inf)
            if event.get("tokens") or finish == NEXT_EDIT:
                self._on_last(event)
