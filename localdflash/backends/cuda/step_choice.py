"""Chooses the way to step: the drafter's block costs a forward of its own, lookup is nearly free, both are measured.

On a GPU a verify of 16 rows costs what one token costs, so only the drafter's time is at stake. Every way keeps a
running mean of its milliseconds and of the tokens that it commits; the best ratio wins, and the other way is tried
again from time to time, the less often the worse it did.
"""

from dataclasses import dataclass

from localdflash.backends.cuda.stepper import Way

MEMORY = 0.9  # weight of what was seen before, for tokens a step
SLOW = 0.98  # the same for milliseconds, which hardly change
HOPE = 4.0  # tokens a step that a way is given credit for before it was tried
SHARE = 0.02  # of the time may go into trying the way that looks worse


@dataclass
class WayRecord:
    """The running means of one way."""

    ms: float
    tokens: float = HOPE

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


class Ways:
    """Chooses among the ways that a pair has; `step_ms` are the times measured at load."""

    def __init__(self, step_ms: dict[Way, float]) -> None:
        self.records = {way: WayRecord(ms) for way, ms in step_ms.items()}
        self._saved = 0.0  # milliseconds that may be spent on a try

    def choose(self) -> Way:
        """Return the way that promises most tokens per millisecond, or now and then the other one."""
        best = max(self.records, key=lambda way: self.records[way].rate)
        for way, record in self.records.items():
            loss = record.ms - record.tokens / self.records[best].rate  # time that the other way would not have taken
            if way != best and loss <= self._saved:
                self._saved -= loss
                return way
        return best

    def learn(self, way: Way, tokens: int, ms: float) -> None:
        """Count a step."""
        record = self.records[way]
        record.tokens += (1 - MEMORY) * (tokens - record.tokens)
        record.ms += (1 - SLOW) * (min(ms, 3 * record.ms) - record.ms)
        self._saved = min(self._saved + SHARE * ms, 10 * record.ms)
