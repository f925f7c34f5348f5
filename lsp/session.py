"""What to suggest in one document: what is shown, as long as what is typed agrees; else what was generated before or
ahead; else what is being generated; and only then a new request.

The prompt of a request is cut at an *anchor*, the start of the line where a run of typing began. What is typed behind
it goes after the prompt, where the model's own text goes: typing and accepting only append, so the engine computes
nothing again but the newest token, and a generation that agrees with what is typed simply goes on.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from localdflash.lsp.closed import still_closed
from localdflash.lsp.generation import Generator
from localdflash.lsp.suggestions import (
    FAILED,
    STOPPED,
    NewestSuggestions,
    Spot,
    Suggestion,
    between,
    whole_lines,
    whole_words,
)
from localdflash.lsp.typing_pace import TypingPace

LONGEST = 96  # tokens of an answer
LEAST_SURE = 0.25  # of two tokens in a row: an answer that nobody asked for ends before them
CHOICES, PATIENCE = 3, 3.0  # suggestions where the user asks for some, and the seconds that they may take
LONGEST_TYPED = 2_000  # characters behind an anchor: the engine has them in its cache, but each request sends them
SENT_BEFORE, SENT_AFTER = 16_000, 16_000  # characters; the engine cuts them to its budget of tokens
SHORTEST = 10  # characters before the cursor of a document that there is something to say of
COPIED = 4_000  # characters of the text after the cursor that drafts may be copied from

Describe = Callable[[str], dict[str, Any]]  # uri -> path, language, context, copies and document of a request


@dataclass(frozen=True)
class Cursor:
    """Where and how a suggestion is asked for. Lines of `before` and `after` end with line feeds.

    `manual`: the user asked, and wants to choose; `current`: whether nothing has changed since; `closed`: what stands
    between `before` and `after` because the editor closed it, see `Closed`.
    """

    before: str
    after: str
    manual: bool
    current: Callable[[], bool]
    deadline: float = 0.35  # seconds after which a part of an answer is better than none
    grows: bool = False  # the client is told when there is more: whole lines are an answer
    closed: str = ""


@dataclass(frozen=True)
class Offer:
    """A suggestion as it is shown: its text from the cursor on. `turn` identifies the request that it answers."""

    suggestion: Suggestion
    text: str
    turn: int


class Pulse:
    """Wakes everybody who waits for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Wake all who wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Wait until the next beat, or so long."""
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with a beat.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Session:
    """The suggestions of one document. `describe` returns what a request says besides the text around the cursor."""

    def __init__(self, uri: str, generator: Generator, pulse: Pulse, pace: TypingPace, describe: Describe) -> None:
        self.uri = uri
        self.shown: Suggestion | None = None
        self._generator, self._pulse, self._pace, self._describe = generator, pulse, pace, describe
        self._known = NewestSuggestions()
        self._spot: Spot | None = None
        self._typed = self._closed = ""
        self._turn = 0
        self._left_over = ""  # of the suggestion that was last refused
        self._offered = ""  # what was typed when something was shown last
        self._choices: Sequence[Suggestion] = ()  # what the user chooses from
        self.silence = ""  # why the last request of a user got nothing
        self._dismissed: tuple[Spot, str] | None = None  # what is not to come again, from its spot on

    async def offers(self, cursor: Cursor) -> list[Offer]:
        """What to show; nothing if a newer request came meanwhile, or the text changed."""
        turn = self._begin()

        def current() -> bool:
            return turn == self._turn and cursor.current()

        try:
            return await self._offers(cursor, current)
        except asyncio.CancelledError:
            if current():
                self._abandon()  # the client takes its newest request back, and nobody typed
            raise

    async def _offers(self, cursor: Cursor, current: Callable[[], bool]) -> list[Offer]:
        spot, typed = self._at(cursor)
        if cursor.manual:
            return await self._several(spot, typed, current)
        while current():
            suggestion = self._find(spot, typed)
            if suggestion is None:
                if not worth_asking(cursor) or not await self._still(current):
                    return []
                suggestion = self._ask(spot, typed)
            text = await self._text(suggestion, typed, cursor, current)
            if text is not None:
                return self._shown(suggestion, typed, text)
            if suggestion.ended == FAILED:
                return []
        return []

    async def growth(self, offer: Offer, current: Callable[[], bool]) -> str | None:
        """The text of an offer once it has grown by whole lines; None if it will not, or nobody needs it."""
        suggestion = offer.suggestion
        while offer.turn == self._turn and current() and suggestion is self.shown:
            rest = suggestion.rest(self._typed)
            if rest is None:
                return None
            text = rest.rstrip() if suggestion.ended else whole_lines(rest)
            if text and len(text) > len(offer.text):
                return text
            if suggestion.ended:
                self._ahead(suggestion)
                return None
            await self._pulse.wait(None)
        return None

    def changed(self, text: str) -> str:
        """Take note that the text changed; return the part of the shown suggestion that was inserted, if it agrees.

        What does not agree stops: the generation within one step, and the suggestion is not shown again.
        """
        spot, before = self._spot, self._typed
        if spot is None:
            return ""
        typed = between(text, spot)
        if typed is not None:
            typed, self._closed = still_closed(typed, before, self._closed)
            self._typed = typed
        shown = self.shown
        rest = None if shown is None or typed is None else shown.rest(typed)
        if shown and rest is None and typed is not None:  # another one of those to choose from was taken
            shown = next((one for one in self._choices if one.rest(typed)), shown)
            self.shown, rest = shown, shown.rest(typed)
        if shown and rest is None:
            if shown.rest(before):
                self._pace.refused()
            self._set_aside(shown, before)
        if self._generator.busy and not self._agrees(typed):
            self._stop()
        self._begin()
        if typed is None or rest is None or not typed.startswith(before):
            return ""
        return typed[len(before) :]

    def dismiss(self, name: str) -> None:
        """Drop what is shown, because the user refused it. Clients that drop it at a key say so too, though `changed`
        knows better.
        """
        if self.shown and self.shown.name == name and self._typed == self._offered:
            self._dismissed = (self.shown.spot, self.shown.typed + self.shown.text)
            self._pace.refused(dismissed=True)
            self._set_aside(self.shown, self._typed)
            self._stop()

    def rest(self, new_context: bool) -> None:
        """While nobody types, move the anchor nearer to the cursor and have the engine read what it does not know."""
        showing = self.shown and self.shown.rest(self._typed)
        if self._spot is None or showing or self._generator.busy:
            return
        far = len(self._typed) > LONGEST_TYPED // 4
        if far:
            start = self._typed.rfind("\n") + 1
            self._move(Spot(self.uri, self._spot.before + self._typed[:start], self._spot.after))
            self._typed = self._typed[start:]
        if far or new_context:
            self._generator.start(self.uri, self._body(self._spot, self._typed) | {"max_tokens": 0})

    @property
    def line(self) -> int:
        """The line where the cursor was last."""
        return (self._spot.before.count("\n") + self._typed.count("\n")) if self._spot else 0

    def leave(self) -> None:
        """Give nothing to whoever waits: the document was closed, or another one is being edited."""
        self._begin()
        self.shown = None
        self._stop()

    def _abandon(self) -> None:
        """Note that nobody waits for the newest request any more."""
        self._begin()
        if not (self.shown and self.shown.rest(self._typed)):
            self._stop()

    def _begin(self) -> int:
        self._turn += 1
        self._pulse.beat()
        return self._turn

    def _at(self, cursor: Cursor) -> tuple[Spot, str]:
        """The spot and what is typed there; the spot stays the same while only what follows its anchor changes."""
        spot = self._spot
        kept = (
            spot is not None
            and spot.after == cursor.after
            and len(cursor.before) - len(spot.before) <= LONGEST_TYPED
            and cursor.before.startswith(spot.before)
        )
        if spot is None or not kept:
            spot = Spot(self.uri, cursor.before[: cursor.before.rfind("\n") + 1], cursor.after)
            self._move(spot)
        self._typed, self._closed = cursor.before[len(spot.before) :], cursor.closed
        return spot, self._typed

    def _move(self, spot: Spot) -> None:
        """Go to another spot, and drop what was shown or generated at the old one."""
        if spot != self._spot:
            self._spot, self.shown = spot, None
            if self._generator.growing:
                self._stop()

    def _find(self, spot: Spot, typed: str) -> Suggestion | None:
        shown = self.shown
        if shown and shown.spot == spot and shown.rest(typed):
            return shown
        return self._known.find(spot, typed)

    async def _still(self, current: Callable[[], bool]) -> bool:
        """Wait as long as another key is likely to come; return whether none did."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._pace.delay(loop.time())
        while current() and (left := until - loop.time()) > 0:
            await self._pulse.wait(left)
        return current()

    def _ask(self, spot: Spot, typed: str, count: int = 1) -> Suggestion:
        asked = [Suggestion(spot, typed) for _ in range(count)]
        self._known.add(asked[0])
        sure = LEAST_SURE if count == 1 else 0.0
        self._generator.start(self.uri, self._body(spot, typed) | {"count": count, "least_sure": sure}, asked)
        return asked[0]

    def _ahead(self, suggestion: Suggestion) -> None:
        """Generate what follows a shown suggestion, before it is accepted."""
        typed = suggestion.typed + suggestion.text
        if suggestion is not self.shown or self._generator.busy or not self._pace.spare:
            return
        if suggestion.ended == STOPPED or len(typed) > LONGEST_TYPED:
            return
        if self._known.find(suggestion.spot, typed) is None:
            self._ask(suggestion.spot, typed)

    async def _text(
        self, suggestion: Suggestion, typed: str, cursor: Cursor, current: Callable[[], bool]
    ) -> str | None:
        """What can be shown of a suggestion, waiting for it to grow; None if it turns out to disagree."""
        loop = asyncio.get_running_loop()
        until = loop.time() + cursor.deadline
        while current():
            rest = suggestion.rest(typed)
            if rest is None or (suggestion.ended in (STOPPED, FAILED) and not rest):
                return None
            if suggestion.ended:
                return rest.rstrip()
            late = loop.time() >= until
            text = whole_lines(rest) if late or cursor.grows else ""
            if text or (late and (text := whole_words(rest))):
                return text
            await self._pulse.wait(None if late else until - loop.time())
        return ""

    async def _several(self, spot: Spot, typed: str, current: Callable[[], bool]) -> list[Offer]:
        """Different suggestions to choose from."""
        self._ask(spot, typed, CHOICES)
        asked, loop = self._generator.growing, asyncio.get_running_loop()
        until = loop.time() + PATIENCE + self._pace.patience
        while current() and not all(suggestion.ended for suggestion in asked) and (left := until - loop.time()) > 0:
            await self._pulse.wait(left)
        if not current():
            return []
        texts: dict[str, Suggestion] = {}
        for suggestion in asked:
            text = suggestion.text if suggestion.ended else whole_lines(suggestion.text) or whole_words(suggestion.text)
            texts.setdefault(text.rstrip(), suggestion)
        offers = [Offer(suggestion, text, self._turn) for text, suggestion in texts.items() if text.strip()]
        for offer in offers[1:]:
            self._known.add(offer.suggestion)
        self._choices, self.silence = [offer.suggestion for offer in offers], "" if offers else _why_silent(asked)
        self.shown, self._offered = offers[0].suggestion if offers else None, typed
        return offers

    def _shown(self, suggestion: Suggestion, typed: str, text: str) -> list[Offer]:
        again = suggestion is self.shown
        if not text.strip() or self._is_dismissed(suggestion):
            return []
        if not again and not self._pace.confident(suggestion.confidence, len(typed) - len(suggestion.typed)):
            return []
        self.shown, self._offered = suggestion, typed
        if suggestion.ended:
            asyncio.get_running_loop().call_soon(self._ahead, suggestion)  # once the answer is on its way
        return [Offer(suggestion, text, self._turn)]

    def _is_dismissed(self, suggestion: Suggestion) -> bool:
        """Whether the user dismissed the same text here, or one with the same beginning."""
        if self._dismissed is None or self._dismissed[0] != suggestion.spot:
            return False
        one, other = self._dismissed[1], suggestion.typed + suggestion.text
        return one.startswith(other) or other.startswith(one)

    def _set_aside(self, shown: Suggestion, typed: str) -> None:
        """Keep what was left of a suggestion that the user typed over: it may still help as a draft."""
        self._left_over = shown.rest(typed) or ""
        self.shown = None

    def _agrees(self, typed: str | None) -> bool:
        growing = [suggestion for suggestion in self._generator.growing if suggestion.spot == self._spot]
        return typed is not None and any(suggestion.rest(typed) is not None for suggestion in growing)

    def _stop(self) -> None:
        """Stop what runs for this document, and only for this one."""
        if self._generator.uri == self.uri:
            self._generator.stop()

    def _body(self, spot: Spot, typed: str) -> dict[str, Any]:
        prefix, first_line = _tail(spot.before)
        body = self._describe(self.uri)
        closed = self._closed if typed == self._typed else ""  # ahead, a text has closed it
        copies = [self._left_over, spot.after[:COPIED], *body.pop("copies")]
        return body | {
            "prefix": prefix,
            "first_line": first_line,
            "middle": typed,
            "closed": closed,
            "suffix": spot.after[:SENT_AFTER],
            "copies": [text for text in copies if text.strip()],
            "max_tokens": LONGEST,
        }


def _why_silent(asked: Sequence[Suggestion]) -> str:
    """Why there is nothing to choose from; "" where the engine has failed, which is told otherwise."""
    if any(suggestion.ended == FAILED for suggestion in asked):
        return ""
    if not all(suggestion.ended for suggestion in asked):
        return f"the engine gave no text within {PATIENCE:.0f} seconds: try again"
    return "the model has nothing to add here"


def worth_asking(cursor: Cursor) -> bool:
    """Whether an unasked suggestion makes sense here: not within a word, not in an empty document."""
    word = cursor.after[:1].isalnum() or cursor.after[:1] == "_"
    return not word and len(cursor.before) + len(cursor.after) >= SHORTEST


def _tail(before: str) -> tuple[str, int]:
    """The last lines of a text, and the number of the first of them."""
    if len(before) <= SENT_BEFORE:
        return before, 0
    start = before.find("\n", len(before) - SENT_BEFORE) + 1
    return before[start:], before.count("\n", 0, start)
