"""What a verify costs by its number of rows: a shape measured at load, times the pace of the moment.

The pace follows the machine (other programs, heat) and the context, which make every width slower or faster together;
so a width that was not run lately is not judged by what it cost under other conditions. Times are milliseconds.
"""

from collections.abc import Mapping

import numpy as np

OWN, SHARED = 0.2, 0.2  # how far a width, and the pace, go to a new measurement
MOST = 2.0  # a measurement that is further off than this factor counts as this far


class VerifyCosts:
    """`shape` is indexed by rows; a width's time is its shape times `pace`.

    Widths that were not measured are interpolated linearly. Of the last three timings of a width the median counts, so
    that a single disturbed one changes nothing.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        widths = sorted(measured)
        known = [measured[width] for width in widths]
        self.shape: list[float] = np.interp(range(widths[-1] + 1), widths, known).tolist()
        self.pace = 1.0
        self._recent: dict[int, tuple[float, float]] = {}  # the two newest timings of a width

    def ms(self, rows: int) -> float:
        """Expected time of a verify."""
        return self.shape[min(rows, len(self.shape) - 1)] * self.pace

    def learn(self, rows: int, ms: float) -> None:
        """Count a measured verify; one wider than any measured at load is ignored."""
        if rows >= len(self.shape):
            return
        expected = self.ms(rows)
        older, old = self._recent.get(rows, (expected, expected))
        self._recent[rows] = (old, ms)
        usual = sorted((older, old, ms))[1]
        ratio = min(max(usual / expected, 1 / MOST), MOST)
        self.shape[rows] *= ratio**OWN
        self.pace *= ratio**SHARED
