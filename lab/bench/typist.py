"""Model of a person who types: random gaps between keys, and what is accepted of a suggestion.

`REACTION_SECONDS` after a suggestion appears, the typist accepts all of it, its first line or its first word if the
text continues so. Otherwise the typist ignores the suggestion until it changes.
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
AFTER_LINE, AFTER_WORD = 2.5, 1.4  # factors of the gap
MIN_ACCEPTED_CHARS = 2  # less is not worth the key

_LINE = re.compile(r"\n*[^\n]*")
_WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")

AcceptedPart = Literal["all", "line", "word"]


class AcceptedText(NamedTuple):
    """Accepted part of a suggestion."""

    part: AcceptedPart
    text: str


@dataclass
class TypedKeys:
    """Keys of one file: `keys` are needed without suggestions, `pressed` were pressed."""

    keys: int = 0
    pressed: int = 0
    accepted: dict[AcceptedPart, int] = field(default_factory=lambda: {"all": 0, "line": 0, "word": 0})
    accepted_characters: int = 0


def agreeing(ghost: str, rest: str) -> AcceptedText | None:
    """Return the largest part of a suggestion that agrees with the following text."""
    parts: list[tuple[AcceptedPart, str]] = [("all", ghost), ("line", _LINE.match(ghost)[0])]  # type: ignore[index]
    if word := _WORD.match(ghost):
        parts.append(("word", word[0]))
    for part, text in parts:
        if len(text.strip()) >= MIN_ACCEPTED_CHARS and rest.startswith(text):
            return AcceptedText(part, text)
    return None


class Typist:
    """Typist with a seeded pace; `speed` 2 is twice as fast, reading included."""

    def __init__(self, editor: Editor, seed: str, speed: float = 1.0) -> None:
        self._editor, self._random, self._speed = editor, random.Random(seed), speed

    async def type(self, text: str, typed: TypedKeys) -> None:
        """Type a text at the cursor."""
        typed.keys += count_keys(text, self._at_line_start())
        rest, due = text, time.perf_counter() + self._gap()
        while rest:
            typed.pressed += 1
            if accepted := await self._read(rest, due):
                self._editor.accept(accepted.text)
                typed.accepted[accepted.part] += 1
                typed.accepted_characters += len(accepted.text)
                rest, due = rest[len(accepted.text) :], time.perf_counter() + self._gap()
                continue
            key = next_key(self._at_line_start(), rest)
            self._editor.type(key)
            rest, due = rest[len(key) :], max(due + self._gap(), time.perf_counter())

    def _at_line_start(self) -> bool:
        return self._editor.before.endswith("\n") or not self._editor.before

    def _gap(self) -> float:
        """Return the seconds until the next key."""
        gap = MEDIAN_GAP * math.exp(self._random.gauss(0.0, SIGMA))
        before = self._editor.before[-1:]
        if self._editor.before.rpartition("\n")[2].strip() == "":
            gap *= AFTER_LINE
        elif not before.isalnum():
            gap *= AFTER_WORD
        return min(gap, MAX_GAP) / self._speed

    async def _read(self, rest: str, until: float) -> AcceptedText | None:
        """Wait until the next key is due; return the text to accept instead, if any."""
        editor = self._editor
        while (now := time.perf_counter()) < until:
            wake = until
            if (shown := editor.shown) and not shown.judged:
                ready = shown.since + REACTION_SECONDS / self._speed
                if now >= ready:
                    shown.judged = True
                    if accepted := agreeing(shown.ghost, rest):
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
