"""Find repetition in a completion: of lines around the cursor, of its last 1 to 4 lines, of words within a line."""

import re
from collections.abc import Sequence
from typing import NamedTuple

PERIODS = (1, 2, 3, 4)  # numbers of lines that are repeated together
MAX_TRIVIAL_CHARS = 10  # a shorter line may occur twice
MAX_PIECE_CHARS = 40  # longer repeats within a line are not detected
MIN_PHRASE_CHARS = 8  # a piece of this length is a phrase: two in a row are a repeat
LONG_LINE_CHARS = 32  # only in lines of this length are repeats of shorter words detected
_WORD = re.compile(r"\w")
_SIGNS = re.compile(r"[\"'`()\[\]{},]")  # other repeated characters are a separator line: -----


class Stutter(NamedTuple):
    """Repeats of one piece at the end of a line."""

    end: int  # offset in the line: end of a phrase's second occurrence, or of the line
    enough: bool  # the completion should stop now


def find_stutter(line: str) -> Stutter | None:
    """Detect a phrase twice, a shorter word 4 times, or punctuation 8 times in a row at the end of a line."""
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
        min_times = 4 if _WORD.search(piece) else 8 if _SIGNS.search(piece) else times + 1
        if times >= min_times and (min_times > 4 or len(line) >= LONG_LINE_CHARS):
            return Stutter(len(line), enough=True)
    return None


class Repeats:
    """Detector fed with complete lines. `at` and results are offsets in the completion's text."""

    def __init__(self, above: Sequence[str], below: Sequence[str]) -> None:
        self._lines = [line.rstrip() for line in above]
        self._below = [line for i, line in enumerate(below) if i == 0 or len(line.strip()) >= MAX_TRIVIAL_CHARS]
        self._runs = dict.fromkeys(PERIODS, 0)  # period -> number of last lines equal to the line one period before
        self._starts = dict.fromkeys(PERIODS, 0)  # period -> offset where that run of lines begins

    def possible_start(self, line: str, at: int) -> int | None:
        """Return where a repetition may begin that includes the incomplete line at offset `at`, or None."""
        starts = [self._starts[p] if self._runs[p] else at for p in self._periods() if self._expected(p, line)]
        return min(starts, default=at if any(below.startswith(line) for below in self._below) else None)

    def is_suffix(self, line: str) -> bool:
        """Return whether a complete line is also one of the lines below."""
        return bool(line.strip()) and line.rstrip() in self._below

    def repetition_start(self, line: str, at: int) -> int | None:
        """Return where the repetition begins that the complete line at offset `at` completes, or None."""
        line = line.rstrip()
        for period in self._periods():
            if line != self._lines[-period]:
                continue
            run, start = self._runs[period] + 1, self._starts[period] if self._runs[period] else at
            if run >= (period if period > 1 or len(line.strip()) >= MAX_TRIVIAL_CHARS else 2):
                return start
        return None

    def add(self, line: str, at: int) -> None:
        """Add a complete line that stays in the completion."""
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
