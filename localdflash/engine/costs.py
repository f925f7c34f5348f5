"""What a verify costs by its number of rows and the context: a shape measured at load, times the pace of the moment.
And what a draft costs: one forward for all nodes, or one for each.

The pace follows the machine (other programs, heat), which makes every width slower or faster together; so a width that
was not run lately is not judged by what it cost under other conditions. The context does not: each row attends to all
of it, so of a long one rows cost nearly what they cost one by one. Times are milliseconds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

OWN, SHARED = 0.2, 0.2  # how far a width, and the pace, go to a new measurement
MOST = 2.0  # a measurement that is further off than this factor counts as this far
STRIDE = 128  # tokens by which the context grows before the shape follows it
USUAL = 9  # tokens that a step leaves to be read: a draft that was accepted, and one more
SLOWER, FASTER = 0.05, 0.3  # weight of a draft's new timing: what disturbs a measurement only ever makes it longer


class VerifyCosts:
    """`shape` is indexed by rows; a width's time is its shape times `pace`.

    `measured` are times by width in a short context, `growth` what each width costs more for a token of context, where
    that is known. Widths in between are interpolated linearly. Of the last three timings of a width the median counts,
    so that a single disturbed one changes nothing.
    """

    def __init__(self, measured: Mapping[int, float], growth: Mapping[int, float] | None = None) -> None:
        self._short = _every_width(measured)
        self._growth = _every_width(growth or dict.fromkeys(measured, 0.0))
        self.shape, self._length = list(self._short), 0
        self.pace = 1.0
        self._recent: dict[int, tuple[float, float]] = {}  # the two newest timings of a width

    @property
    def measured(self) -> tuple[Sequence[float], Sequence[float]]:
        """By rows: times in a short context, and what a token of context adds."""
        return self._short, self._growth

    def set_context_length(self, length: int) -> None:
        """Expect verifies after so many tokens."""
        if abs(length - self._length) >= STRIDE:
            self._length = length
            self.shape = [short + growth * length for short, growth in zip(self._short, self._growth, strict=True)]

    def predict_ms(self, rows: int) -> float:
        """Expected time of a verify."""
        return self.shape[min(rows, len(self.shape) - 1)] * self.pace

    def learn(self, rows: int, ms: float) -> None:
        """Count a measured verify; one wider than any measured at load is ignored."""
        if rows >= len(self.shape):
            return
        expected = self.predict_ms(rows)
        older, old = self._recent.get(rows, (expected, expected))
        self._recent[rows] = (old, ms)
        usual = sorted((older, old, ms))[1]
        ratio = min(max(usual / expected, 1 / MOST), MOST)
        for times in (self.shape, self._short, self._growth):
            times[rows] *= ratio**OWN
        self.pace *= ratio**SHARED


def _every_width(measured: Mapping[int, float]) -> list[float]:
    widths = sorted(measured)
    times: list[float] = np.interp(range(widths[-1] + 1), widths, [measured[width] for width in widths]).tolist()
    return times


class DraftCost:
    """`first` is the time of the first node, or of a whole block; `each` that of every further one; `read` that of a
    token which has to be read before.
    """

    def __init__(self, first: float = 0.0, each: float = 0.0, read: float = 0.0) -> None:
        self.first, self.each, self.read = first, each, read

    def predict_ms(self, nodes: int) -> float:
        """Expected time of a draft of so many nodes."""
        return self.first + self.each * (nodes - 1)

    def predict_reading_ms(self, waiting: int) -> float:
        """Expected time to read what waits, but for the few tokens that each step leaves: those are in `first`."""
        return self.read * max(waiting - USUAL, 0)

    def learn(self, nodes: int, ms: float) -> None:
        """Count a measured draft; outliers (a busy machine) are capped, so one changes little.

        It changes both times by the same factor: one draft does not tell them apart.
        """
        usual = self.predict_ms(nodes)
        learned = usual + (FASTER if ms < usual else SLOWER) * (min(ms, 3 * usual + 0.01) - usual)
        if self.each:
            self.first, self.each = self.first * learned / usual, self.each * learned / usual
        else:
            self.first = learned
