"""Acceptance view: raw text in which a character has the style of the drafter of the token with its first byte."""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from localdflash.chat.messages import StepRecord
from localdflash.text.sanitize import sanitize
from localdflash.tui.styled_lines import Line, StyledRun, wrap

TINTS: tuple[str, ...] = ("tint.dflash", "tint.lookup", "tint.grammar", "tint.own")
STEP = "step"  # style of every second step

_STYLES = tuple(f"{tint}{mark}" for tint in TINTS for mark in ("", f" {STEP}"))
_TAB = 4  # cells


def tint_of(drafter: str) -> str:
    """Return the style of tokens that this drafter proposed; "" is the target, an unknown name a grammar."""
    name = f"tint.{drafter or 'own'}"
    return name if name in TINTS else "tint.grammar"


class TintedText:
    """Raw text of one answer with the verify steps that produced it, laid out for one width at a time."""

    def __init__(self, text: str = "", steps: Iterable[StepRecord] = ()) -> None:
        self._ends = array("Q")  # byte offset of the end of each span, the text that one drafter added in one step
        self._styles = bytearray()  # style of each span, as an index into `_STYLES`
        self._steps = self._steps_with_text = 0  # all steps, and those with text
        self._tokens: Counter[str] = Counter()  # number of tokens by drafter
        self._texts: list[str] = [""]  # logical lines
        self._starts = array("Q", [0])  # byte offset at which each logical line begins
        self._rows: list[Line] = []
        self._first_rows = array("Q")  # first row of each logical line that is laid out
        self._width = 0
        self._stale = 0  # the first logical line to lay out again
        self.first_changed = 0  # row, in the last call of `lines`
        self.append(text)
        for step in steps:
            self.add(step)

    def append(self, text: str) -> None:
        """Append text, in pieces of any size."""
        if not text:
            return
        self._stale = min(self._stale, len(self._texts) - 1)
        first, *others = text.split("\n")
        self._texts[-1] += first
        for other in others:
            self._starts.append(self._starts[-1] + _size(self._texts[-1]) + 1)
            self._texts.append(other)

    def add(self, step: StepRecord) -> None:
        """Append a verify step; a step without text, such as the end token's, is only counted."""
        self._steps += 1
        drafted = min(step.accepted, len(step.sizes))
        if drafted:
            self._tokens[step.drafter] += drafted
        if drafted < len(step.sizes):
            self._tokens[""] += len(step.sizes) - drafted
        start = self._ends[-1] if self._ends else 0
        if not any(step.sizes):
            return
        self._stale = min(self._stale, bisect_right(self._starts, start) - 1)
        for sizes, drafter in ((step.sizes[:drafted], step.drafter), (step.sizes[drafted:], "")):
            if size := sum(sizes):
                start += size
                self._ends.append(start)
                self._styles.append(2 * TINTS.index(tint_of(drafter)) + self._steps_with_text % 2)
        self._steps_with_text += 1

    def legend(self) -> list[StyledRun]:
        """Return the number of tokens per source, each in its style; a note if the sources are unknown."""
        if not self._steps and self._texts == [""]:
            return []
        if not self._steps:
            return [StyledRun("the source of these tokens is unknown", "muted")]
        counted = [
            StyledRun(f" {sanitize(name)[:20] or 'the model itself'} {count} ", tint_of(name))
            for name, count in sorted(self._tokens.items(), key=lambda one: (not one[0], one[0]))
        ]
        return [*counted, StyledRun(f"in {self._steps} steps, every second one underlined", "muted")]

    def lines(self, width: int) -> Sequence[Line]:
        """Return all rows; only logical lines that changed since the last call are laid out again."""
        if width != self._width:
            self._width, self._stale = width, 0
        first = min(self._stale, len(self._first_rows))
        keep = self._first_rows[first] if first < len(self._first_rows) else len(self._rows)
        del self._rows[keep:], self._first_rows[first:]
        for index in range(first, len(self._texts)):
            self._first_rows.append(len(self._rows))
            self._rows += wrap(list(self._pieces(index)), width)
        self.first_changed, self._stale = keep, len(self._texts)
        return self._rows

    def _pieces(self, index: int) -> Iterator[StyledRun]:
        """Yield the pieces of a logical line with their styles; text that no step covers has the style ""."""
        text, start = self._texts[index], self._starts[index]
        offsets = _offsets(text)
        span, done = bisect_right(self._ends, start), 0
        while done < len(text) and span < len(self._ends):
            end = bisect_left(offsets, self._ends[span] - start)
            if end > done:
                yield StyledRun(_safe(text[done:end]), _STYLES[self._styles[span]])
                done = end
            span += 1
        if done < len(text):
            yield StyledRun(_safe(text[done:]))


def _safe(text: str) -> str:
    return sanitize(text).replace("\t", " " * _TAB)


def _size(text: str) -> int:
    """Return the number of UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _offsets(text: str) -> Sequence[int]:
    """Return the byte offset of each character, and the total."""
    return range(len(text) + 1) if text.isascii() else list(accumulate(map(_size, text), initial=0))
