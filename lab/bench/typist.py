"""Model of a person who types: random pauses between keys, and decisions to accept suggestions.

`REACTION_SECONDS` after a suggestion appears, the typist accepts all of it, its first line or its first word if the
text to type begins with it. Otherwise the typist ignores the suggestion until it changes.
"""

import asyncio
import math
import random
import re
import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from localdflash.lab.bench.editor import Editor
from localdflash.lab.bench.passages import count_keys, next_key

REACTION_SECONDS = 0.25
MEDIAN_GAP, SIGMA, MAX_GAP = 0.15, 0.4, 1.5  # seconds between keys; SIGMA: standard deviation of their logarithm
LINE_START_FACTOR, AFTER_SIGN_FACTOR = 2.5, 1.4  # the gap is longer at a line's start, and after a space or sign
MIN_ACCEPTED_CHARS = 2  # accepting a shorter text takes as many keys as typing it

_LINE = re.compile(r"\n*[^\n]*")
_WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")

AcceptedPart = Literal["all", "line", "word"]


class AcceptedText(NamedTuple):
    """Accepted part of a suggestion."""

    part: AcceptedPart
    text: str


@dataclass
class TypedKeys:
    """Counts for one file."""

    keys: int = 0  # keys that the text needs without suggestions
    pressed: int = 0  # keys that were pressed; accepting a suggestion is one key
    accepted: dict[AcceptedPart, int] = field(default_factory=lambda: {"all": 0, "line": 0, "word": 0})
    accepted_characters: int = 0


def find_agreeing_part(ghost: str, remaining_text: str) -> AcceptedText | None:
    """Return the largest part of a suggestion with which the remaining text begins; None if no part agrees."""
    parts: list[tuple[AcceptedPart, str]] = [("all", ghost), ("line", _LINE.match(ghost)[0])]  # type: ignore[index]
    if word := _WORD.match(ghost):
        parts.append(("word", word[0]))
    for part, text in parts:
        if len(text.strip()) >= MIN_ACCEPTED_CHARS and remaining_text.startswith(text):
            return AcceptedText(part, text)
    return None


class Typist:
    """Typist with a seeded pace; `speed` 2 is twice as fast, reading included."""

    def __init__(self, editor: Editor, seed: str, speed: float = 1.0) -> None:
        self._editor, self._random, self._speed = editor, random.Random(seed), speed

    async def type(self, text: str, typed: TypedKeys) -> None:
        """Type a text at the cursor, accepting suggestions; count the keys in `typed`.

        Enter also inserts the next line's indentation, as an editor with auto-indent does.
        """
        typed.keys += count_keys(text, self._at_line_start())
        remaining_text, due = text, time.perf_counter() + self._gap()
        while remaining_text:
            typed.pressed += 1
            if accepted := await self._await_key_or_acceptance(remaining_text, due):
                self._editor.accept(accepted.text)
                typed.accepted[accepted.part] += 1
                typed.accepted_characters += len(accepted.text)
                remaining_text, due = remaining_text[len(accepted.text) :], time.perf_counter() + self._gap()
                continue
            key = next_key(self._at_line_start(), remaining_text)
            self._editor.type(key)
            # A late key does not delay the keys after it.
            remaining_text, due = remaining_text[len(key) :], max(due + self._gap(), time.perf_counter())

    def _at_line_start(self) -> bool:
        return self._editor.before.endswith("\n") or not self._editor.before

    def _gap(self) -> float:
        """Return the seconds until the next key."""
        gap = MEDIAN_GAP * math.exp(self._random.gauss(0.0, SIGMA))
        before = self._editor.before[-1:]
        if self._editor.before.rpartition("\n")[2].strip() == "":
            gap *= LINE_START_FACTOR
        elif not before.isalnum():
            gap *= AFTER_SIGN_FACTOR
        return min(gap, MAX_GAP) / self._speed

    async def _await_key_or_acceptance(self, remaining_text: str, until: float) -> AcceptedText | None:
        """Wait until the next key is due, or until the typist accepts a suggestion; return the accepted text if so."""
        editor = self._editor
        while (now := time.perf_counter()) < until:
            wake = until
            if (shown := editor.shown) and not shown.judged:
                ready = shown.since + REACTION_SECONDS / self._speed
                if now >= ready:
                    shown.judged = True
                    if accepted := find_agreeing_part(shown.ghost, remaining_text):
                        return accepted
                else:
                    wake = min(ready, until)
            editor.changed.clear()
            try:
                async with asyncio.timeout(wake - now):
                    await editor.changed.wait()
            except TimeoutError:
                continue
        return None
