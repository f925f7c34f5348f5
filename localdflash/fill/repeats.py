"""Lines that say again what was said: the line after the cursor, or the lines before, once or in turns."""

from collections.abc import Sequence

PERIODS = (1, 2, 3, 4)  # lines
TRIVIAL = 10  # characters: a shorter line may stand twice


class Repeats:
    """Feed it whole lines; it tells which a line that is not complete yet may turn out to repeat."""

    def __init__(self, above: Sequence[str], below: Sequence[str]) -> None:
        self._lines = [line.rstrip() for line in above]
        self._below = [line for i, line in enumerate(below) if i == 0 or len(line.strip()) >= TRIVIAL]
        self._runs = dict.fromkeys(PERIODS, 0)  # lines that were equal to those one period before
        self._starts = dict.fromkeys(PERIODS, 0)  # where such a run begins in the text

    def begins(self, line: str, at: int) -> int | None:
        """Where a repetition may begin that the line, which begins `at`, is a part of; None where it is none."""
        starts = [self._starts[p] if self._runs[p] else at for p in self._periods() if self._expected(p, line)]
        return min(starts, default=at if any(one.startswith(line) for one in self._below) else None)

    def is_suffix(self, line: str) -> bool:
        """Whether a complete line stands after the cursor too."""
        return bool(line.strip()) and line.rstrip() in self._below

    def repeated(self, line: str, at: int) -> int | None:
        """Where the repetition begins that a complete line completes; None where it completes none."""
        line = line.rstrip()
        for period in self._periods():
            if line != self._lines[-period]:
                continue
            run, start = self._runs[period] + 1, self._starts[period] if self._runs[period] else at
            if run >= (period if period > 1 or len(line.strip()) >= TRIVIAL else 2):
                return start
        return None

    def add(self, line: str, at: int) -> None:
        """A complete line that stays."""
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
