"""Suggestions for one document, reused from those shown or generated before if possible.

The prompt of a request is cut at an *anchor*, the start of the line where the user began to type. Typing and accepting
only append text after the anchor, so the engine computes only the newest tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from localdflash.lsp.closers import split_closers
from localdflash.lsp.suggestions import (
    FAILED,
    NEXT_EDIT,
    STOPPED,
    Anchor,
    Generator,
    NewestSuggestions,
    Suggestion,
    typed_text,
    whole_lines,
    whole_words,
)
from localdflash.lsp.typing_pace import TypingPace
from localdflash.text.stream import UNSOUND

MAX_ANSWER_TOKENS = 96
MIN_TOKEN_PROBABILITY = 0.25  # an automatic answer ends before two tokens in a row below this
MANUAL_CHOICES, MANUAL_SECONDS = 3, 3.0  # suggestions of a manual request, and their time limit
MAX_TYPED_CHARS = 2_000  # characters typed after an anchor; each request sends them
MAX_PREFIX_CHARS, MAX_SUFFIX_CHARS = 16_000, 16_000  # characters; the engine cuts them to its budget of tokens
MIN_DOCUMENT_CHARS = 10  # a shorter document gets no automatic suggestions
MAX_DRAFT_CHARS = 4_000  # characters of the text after the cursor that drafts may be copied from

Describe = Callable[[str], dict[str, Any]]  # uri -> fields of a request: path, language, context, copies, document


@dataclass(frozen=True)
class Cursor:
    """Cursor where suggestions are requested. `manual`: by the user; `closers`: the editor's closers after it."""

    before: str
    after: str
    manual: bool
    current: Callable[[], bool]  # whether the document has not changed since
    deadline: float = 0.35  # seconds after which an incomplete answer is returned
    patient: bool = True  # whether to wait beyond the deadline for the first word
    grows: bool = False  # the client accepts updates, so the first whole lines are returned at once
    closers: str = ""


@dataclass(frozen=True)
class SuggestionOffer:
    """Shown suggestion: its text from the cursor on. `turn` identifies the request that it answers."""

    suggestion: Suggestion
    text: str
    turn: int


class Pulse:
    """Signal that wakes all waiting tasks."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Wait until the next beat, or the timeout."""
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with a beat.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Session:
    """Suggestions of one document. `describe` returns the fields of a request besides the text."""

    def __init__(self, uri: str, generator: Generator, pulse: Pulse, pace: TypingPace, describe: Describe) -> None:
        self.uri = uri
        self.shown: Suggestion | None = None
        self._generator, self._pulse, self._pace, self._describe = generator, pulse, pace, describe
        self._known = NewestSuggestions()
        self._anchor: Anchor | None = None
        self._typed = self._closers = ""  # text typed after the anchor, and the editor's closers after the cursor
        self._turn = 0
        self._left_over = ""  # rest of the suggestion that the user last typed over or dismissed
        self._offered = ""  # value of `_typed` when a suggestion was last shown
        self._choices: Sequence[Suggestion] = ()  # suggestions of the last manual request
        self.silence_reason = ""  # why the last manual request got no suggestion
        self._dismissed: tuple[Anchor, str] | None = None  # anchor and text of a dismissed suggestion

    async def offers(self, cursor: Cursor) -> list[SuggestionOffer]:
        """Return the suggestions to show; [] if there are none, or a newer request or a change makes them obsolete."""
        self.silence_reason = ""
        if not cursor.current():
            return []
        turn = self._begin_turn()

        def current() -> bool:
            return turn == self._turn and cursor.current()

        try:
            return await self._find_offers(cursor, current)
        except asyncio.CancelledError:
            if current():  # the client cancelled its newest request, and the text is unchanged
                self._begin_turn()
                if not (self.shown and self.shown.rest(self._typed)):
                    self._stop_generation()
            raise

    async def _find_offers(self, cursor: Cursor, current: Callable[[], bool]) -> list[SuggestionOffer]:
        anchor, typed = self._set_cursor(cursor)
        if cursor.manual:
            return await self._manual_offers(anchor, typed, current)
        while current():
            shown = self.shown if self.shown and self.shown.anchor == anchor and self.shown.rest(typed) else None
            suggestion = shown or self._known.find(anchor, typed)
            if suggestion is None:
                if not should_request(cursor) or not await self._wait_for_pause(current):
                    return []
                suggestion = self._request_text(anchor, typed)
            text = await self._wait_for_text(suggestion, typed, cursor, current)
            if text is not None:
                return self._show(suggestion, typed, text)
            if suggestion.ended == FAILED:
                return []
        return []

    async def growth(self, offer: SuggestionOffer, current: Callable[[], bool]) -> str | None:
        """Wait until an offer has grown by whole lines and return its text; None if it is complete or obsolete."""
        suggestion = offer.suggestion
        while offer.turn == self._turn and current() and suggestion is self.shown:
            rest = suggestion.rest(self._typed)
            if rest is None:
                return None
            text = rest.rstrip() if suggestion.ended else whole_lines(rest)
            if text and len(text) > len(offer.text):
                return text
            if suggestion.ended:
                self._generate_ahead(suggestion)
                return None
            await self._pulse.wait(None)
        return None

    def changed(self, text: str) -> str:
        """Record that the text changed; return the inserted text if the shown suggestion agrees, else ""."""
        anchor, before = self._anchor, self._typed
        if anchor is None:
            return ""
        typed = typed_text(text, anchor)
        if typed is not None:
            typed, self._closers = split_closers(typed, before, self._closers)
            self._typed = typed
        shown = self.shown
        rest = None if shown is None or typed is None else shown.rest(typed)
        if shown and rest is None and typed is not None:  # the user accepted another suggestion of a manual request
            shown = next((one for one in self._choices if one.rest(typed)), shown)
            self.shown, rest = shown, shown.rest(typed)
        if shown and rest is None:
            if shown.rest(before):
                self._pace.refused()
            self._set_aside(shown, before)
        growing = [one for one in self._generator.growing if one.anchor == self._anchor]
        if self._generator.busy and (typed is None or all(one.rest(typed) is None for one in growing)):
            self._stop_generation()
        self._begin_turn()
        if typed is None or rest is None or not typed.startswith(before):
            return ""
        return typed[len(before) :]

    def dismiss(self, name: str) -> None:
        """Drop a dismissed suggestion, unless text was typed since: clients also report suggestions hidden by a key."""
        if self.shown and self.shown.name == name and self._typed == self._offered:
            self._dismissed = (self.shown.anchor, self.shown.typed + self.shown.text)
            self._pace.refused(dismissed=True)
            self._set_aside(self.shown, self._typed)
            self._stop_generation()

    def prepare_prompt(self, new_context: bool) -> None:
        """In a typing pause, move a distant anchor to the cursor's line, and have the engine read a changed prompt."""
        showing = self.shown and self.shown.rest(self._typed)
        if self._anchor is None or showing or self._generator.busy:
            return
        far = len(self._typed) > MAX_TYPED_CHARS // 4
        if far:
            start = self._typed.rfind("\n") + 1
            self._set_anchor(Anchor(self.uri, self._anchor.before + self._typed[:start], self._anchor.after))
            self._typed = self._typed[start:]
        if far or new_context:
            self._generator.start(self.uri, self._request_body(self._anchor, self._typed) | {"max_tokens": 0})

    @property
    def line(self) -> int:
        """Return the line where the cursor was last."""
        return (self._anchor.before.count("\n") + self._typed.count("\n")) if self._anchor else 0

    def end_requests(self) -> None:
        """End waiting requests and forget all suggestions: the document was closed, or another one is being edited."""
        self._begin_turn()
        self.shown, self._known = None, NewestSuggestions()
        self._stop_generation()

    def _begin_turn(self) -> int:
        self._turn += 1
        self._pulse.beat()
        return self._turn

    def _set_cursor(self, cursor: Cursor) -> tuple[Anchor, str]:
        """Return the anchor and the text typed after it; the anchor stays while only that text changes."""
        anchor = self._anchor
        kept = (
            anchor is not None
            and anchor.after == cursor.after
            and len(cursor.before) - len(anchor.before) <= MAX_TYPED_CHARS
            and cursor.before.startswith(anchor.before)
        )
        if anchor is None or not kept:
            anchor = Anchor(self.uri, cursor.before[: cursor.before.rfind("\n") + 1], cursor.after)
            self._set_anchor(anchor)
        self._typed, self._closers = cursor.before[len(anchor.before) :], cursor.closers
        return anchor, self._typed

    def _set_anchor(self, anchor: Anchor) -> None:
        """Set the anchor; if it changes, drop the shown suggestion and stop the generation."""
        if anchor != self._anchor:
            self._anchor, self.shown = anchor, None
            if self._generator.growing:
                self._stop_generation()

    async def _wait_for_pause(self, current: Callable[[], bool]) -> bool:
        """Wait while another key is likely; return whether the request is still current."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._pace.delay(loop.time())
        while current() and (left := end - loop.time()) > 0:
            await self._pulse.wait(left)
        return current()

    def _request_text(self, anchor: Anchor, typed: str, count: int = 1) -> Suggestion:
        requested = [Suggestion(anchor, typed) for _ in range(count)]
        self._known.add(requested[0])
        options = {"count": count, "least_sure": MIN_TOKEN_PROBABILITY if count == 1 else 0.0}
        self._generator.start(self.uri, self._request_body(anchor, typed) | options, requested)
        return requested[0]

    def _generate_ahead(self, suggestion: Suggestion) -> None:
        """Generate the text after a shown suggestion, before the user accepts it."""
        typed = suggestion.typed + suggestion.text
        if suggestion is not self.shown or self._generator.busy or not self._pace.may_generate_ahead:
            return
        if suggestion.ended == STOPPED or len(typed) > MAX_TYPED_CHARS:
            return
        if self._known.find(suggestion.anchor, typed) is None:
            self._request_text(suggestion.anchor, typed)

    async def _wait_for_text(
        self, suggestion: Suggestion, typed: str, cursor: Cursor, current: Callable[[], bool]
    ) -> str | None:
        """Wait for text to show and return it; None if there is none that fits `typed`, "" if obsolete."""
        loop = asyncio.get_running_loop()
        end = loop.time() + cursor.deadline
        while current():
            rest = suggestion.rest(typed)
            if rest is None or (suggestion.ended in (STOPPED, FAILED) and not rest):
                return None
            if suggestion.ended:
                return rest.rstrip()
            late = loop.time() >= end
            text = whole_lines(rest) if late or cursor.grows else ""
            if text or (late and ((text := whole_words(rest)) or not cursor.patient)):
                return text
            await self._pulse.wait(None if late else end - loop.time())
        return ""

    async def _manual_offers(self, anchor: Anchor, typed: str, current: Callable[[], bool]) -> list[SuggestionOffer]:
        """Return several suggestions to choose from, the best first."""
        self._request_text(anchor, typed, MANUAL_CHOICES)
        requested, loop = self._generator.growing, asyncio.get_running_loop()
        end = loop.time() + MANUAL_SECONDS + self._pace.patience
        while current() and not all(suggestion.ended for suggestion in requested) and (left := end - loop.time()) > 0:
            await self._pulse.wait(left)
        if not current():
            return []
        texts: dict[str, Suggestion] = {}
        for suggestion in sorted(requested, key=lambda one: (one.ended == UNSOUND, -one.score)):
            text = suggestion.text if suggestion.ended else whole_lines(suggestion.text) or whole_words(suggestion.text)
            texts.setdefault(text.rstrip(), suggestion)
        offers = [SuggestionOffer(suggestion, text, self._turn) for text, suggestion in texts.items() if text.strip()]
        for offer in reversed(offers):  # so that the best is the newest
            self._known.add(offer.suggestion)
        self._choices = [offer.suggestion for offer in offers]
        self.silence_reason = "" if offers else _why_silent(requested)
        self.shown, self._offered = offers[0].suggestion if offers else None, typed
        return offers

    def _show(self, suggestion: Suggestion, typed: str, text: str) -> list[SuggestionOffer]:
        is_shown = suggestion is self.shown
        if not text.strip():
            return []
        if self._dismissed and self._dismissed[0] == suggestion.anchor:
            dismissed, whole = self._dismissed[1], suggestion.typed + suggestion.text
            if dismissed.startswith(whole) or whole.startswith(dismissed):
                return []
        if not is_shown and not self._pace.is_confident(suggestion.confidence, len(typed) - len(suggestion.typed)):
            return []
        self.shown, self._offered = suggestion, typed
        if suggestion.ended:
            asyncio.get_running_loop().call_soon(self._generate_ahead, suggestion)  # after the answer has been sent
        return [SuggestionOffer(suggestion, text, self._turn)]

    def _set_aside(self, shown: Suggestion, typed: str) -> None:
        """Keep the rest of a suggestion that the user typed over, as a likely draft."""
        self._left_over = shown.rest(typed) or ""
        self.shown = None

    def _stop_generation(self) -> None:
        """Stop the running generation if it is for this document."""
        if self._generator.uri == self.uri:
            self._generator.stop()

    def _request_body(self, anchor: Anchor, typed: str) -> dict[str, Any]:
        prefix, first_line = _tail(anchor.before)
        body = self._describe(self.uri)
        closers = self._closers if typed == self._typed else ""  # text generated ahead follows the closers
        copies = [self._left_over, anchor.after[:MAX_DRAFT_CHARS], *body.pop("copies")]
        return body | {
            "prefix": prefix,
            "first_line": first_line,
            "middle": typed,
            "closed": closers,
            "suffix": anchor.after[:MAX_SUFFIX_CHARS],
            "copies": [text for text in copies if text.strip()],
            "max_tokens": MAX_ANSWER_TOKENS,
        }


def _why_silent(requested: Sequence[Suggestion]) -> str:
    """Return why a manual request got no suggestion; "" if the engine has failed, which is reported elsewhere."""
    if any(suggestion.ended == NEXT_EDIT for suggestion in requested):
        return "the completion pair predicts edits, and completes nothing at the cursor"
    if any(suggestion.ended == FAILED for suggestion in requested):
        return ""
    if not all(suggestion.ended for suggestion in requested):
        return f"the engine gave no text within {MANUAL_SECONDS:.0f} seconds: try again"
    return "the model has nothing to add here"


def should_request(cursor: Cursor) -> bool:
    """Return whether to request a suggestion: not before a word character, not in a document of few characters."""
    word = cursor.after[:1].isalnum() or cursor.after[:1] == "_"
    return not word and len(cursor.before) + len(cursor.after) >= MIN_DOCUMENT_CHARS


def _tail(before: str) -> tuple[str, int]:
    """Return at most the last MAX_PREFIX_CHARS, from a line start if cut, and the number of that line from 0."""
    if len(before) <= MAX_PREFIX_CHARS:
        return before, 0
    start = before.find("\n", len(before) - MAX_PREFIX_CHARS) + 1
    return before[start:], before.count("\n", 0, start)
