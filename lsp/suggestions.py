"""Suggestions: texts for an *anchor*, shown or still growing, as long as the text typed there agrees."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from localdflash.lsp.engine_completer import CompletionClient, Event

STOPPED, FAILED = "stopped", "failed"  # values of `Suggestion.ended`: obsolete; the engine failed
MAX_SUGGESTIONS = 256  # per document
MAX_CHARS = 16_000_000  # of the distinct anchors; each holds its whole document

_names = count(1)


class Anchor(NamedTuple):
    """Position in a document."""

    uri: str
    before: str  # up to the anchor
    after: str  # from the cursor on


@dataclass(eq=False)
class Suggestion:
    """Text for an anchor. `ended` is why it is complete; "" while more may come."""

    anchor: Anchor
    typed: str  # between anchor and cursor at the request
    text: str = ""
    confidence: float | None = None  # geometric mean of the probabilities of its first tokens; None: unknown
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
        """Return whether the typed text needs no new generation: this one continues it, may do so, or was empty."""
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
        while sum(len(one.before) + len(one.after) for one in {one.anchor for one in self._newest}) > MAX_CHARS:
            self._newest.popleft()

    def find(self, anchor: Anchor, typed: str) -> Suggestion | None:
        """Return the suggestion that fits `typed`: that with the longest own typed text, and of equals the newest."""
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


def between(text: str, anchor: Anchor) -> str | None:
    """Return the text typed at an anchor in this text; None if the text around the anchor differs."""
    end = len(text) - len(anchor.after)
    if end < len(anchor.before) or not text.startswith(anchor.before) or not text.endswith(anchor.after):
        return None
    return text[len(anchor.before) : end]


CANCELLED = "cancelled"  # `finish` of an answer that the engine stopped for another client


class Generator:
    """Runner of generations; starting another one stops the running one.

    `beat` is called at each start, event and end, `begun` with the TTFT in seconds, `ended` with the last event.
    """

    def __init__(
        self,
        completer: CompletionClient,
        beat: Callable[[], None],
        begun: Callable[[float], None],
        ended: Callable[[Event], None],
    ) -> None:
        self._completer, self._beat, self._begun, self._ended = completer, beat, begun, ended
        self._task: asyncio.Task[None] | None = None
        self._alone = asyncio.Lock()  # a stopped request's connection is closed before another one is made
        self.growing: Sequence[Suggestion] = ()
        self.uri = ""  # document of the newest generation

    def start(self, uri: str, body: Mapping[str, object], suggestions: Sequence[Suggestion] = ()) -> None:
        """Request one suggestion for each choice. With none, the engine only reads the prompt."""
        self.stop()
        self.uri, self.growing = uri, suggestions
        self._task = asyncio.create_task(self._run(body, suggestions))
        self._beat()

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
        async with self._alone:
            return

    async def _run(self, body: Mapping[str, object], suggestions: Sequence[Suggestion]) -> None:
        started, silent = time.monotonic(), bool(suggestions)
        try:
            async with self._alone, aclosing(self._completer.complete(body)) as events:
                async for event in events:
                    if silent:
                        silent = False
                        self._begun(time.monotonic() - started)
                    self._take(event, suggestions)
                    self._beat()
        finally:
            for suggestion in suggestions:  # only those without an end yet
                suggestion.cut_off(FAILED)
            self._beat()

    def _take(self, event: Event, suggestions: Sequence[Suggestion]) -> None:
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
            suggestion.ended = finish
            if event.get("tokens"):
                self._ended(event)
