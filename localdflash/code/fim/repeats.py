"""Find repetitions of lines before or after the cursor, alone or alternating, and repeats within a line."""

import re
from collections.abc import Sequence
from typing import NamedTuple

PERIODS = (1, 2, 3, 4)  # lines
MAX_TRIVIAL_CHARS = 10  # a shorter line may be repeated
MAX_PIECE_CHARS = 40  # of a piece that a line may repeat
MIN_PHRASE_CHARS = 8  # longer pieces are phrases
LONG_LINE_CHARS = 32  # in which shorter pieces are looked for
_WORD = re.compile(r"\w")
_SIGNS = re.compile(r"[\"'`()\[\]{},]")  # repeated other signs are a rule: -----


class Stutter(NamedTuple):
    """Repeats of one piece at the end of a line."""

    end: int  # of its second occurrence
    enough: bool  # to stop


def stutter(line: str) -> Stutter | None:
    """Detect a phrase twice, a shorter piece four times, or signs eight times at the end of a line."""
    tail = line[-4 * MAX_PIECE_CHARS :]
    for period in range(1, min(MAX_PIECE_CHARS, len(tail) // 2) + 1):
        if tail[-1] != tail[-1 - period]:
            continue
        run = 1
        while run + period < len(tail) and tail[-1 - run] == tail[-1 - run - period]:
            run += 1
        if run < period:
            continue
        piece, times = tail[-period:], run // period + 1
        if period >= MIN_PHRASE_CHARS and _WORD.search(piece):
            return Stutter(len(line) - run + period, times >= 3)
        least = 4 if _WORD.search(piece) else 8 if _SIGNS.search(piece) else times + 1
        if times >= least and (least > 4 or len(line) >= LONG_LINE_CHARS):
            return Stutter(len(line), enough=True)
    return None


class Repeats:
    """Tracker of complete lines, which finds those that an incomplete line may repeat."""

    def __init__(self, above: Sequence[str], below: Sequence[str]) -> None:
        self._lines = [line.rstrip() for line in above]
        self._below = [line for i, line in enumerate(below) if i == 0 or len(line.strip()) >= MAX_TRIVIAL_CHARS]
        self._runs = dict.fromkeys(PERIODS, 0)  # lines that were equal to those one period before
        self._starts = dict.fromkeys(PERIODS, 0)  # where such a run begins in the text

    def begins(self, line: str, at: int) -> int | None:
        """Return where a repetition may begin that includes the line starting `at`; None if there is none."""
        starts = [self._starts[p] if self._runs[p] else at for p in self._periods() if self._expected(p, line)]
        return min(starts, default=at if any(below.startswith(line) for below in self._below) else None)

    def is_suffix(self, line: str) -> bool:
        """Return whether a complete line is after the cursor too."""
        return bool(line.strip()) and line.rstrip() in self._below

    def repeated(self, line: str, at: int) -> int | None:
        """Return where the repetition begins that a complete line completes; None if it completes none."""
        line = line.rstrip()
        for period in self._periods():
            if line != self._lines[-period]:
                continue
            run, start = self._runs[period] + 1, self._starts[period] if self._runs[period] else at
            if run >= (period if period > 1 or len(line.strip()) >= MAX_TRIVIAL_CHARS else 2):
                return start
        return None

    def add(self, line: str, at: int) -> None:
        """Add a complete line that stays."""
        line = line.rstrip()
        if not line:
            return
        for period in self._periods():
            if line == self._lines[-period]:
                self._starts[period] = self._starts[period] if self._runs[period] else at
                self._runs[period] += 1
            else:
                self._runs[period] = 0
        self._lines.append(line)

    def _periods(self) -> list[int]:
        return [period for period in PERIODS if period <= len(self._lines)]

    def _expected(self, period: int, line: str) -> bool:
        return self._lines[-period].startswith(line) and (bool(line.strip()) or self._runs[period] > 0)
