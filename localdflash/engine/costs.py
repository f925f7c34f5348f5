"""Costs of a verify batch by width and context length. Times are milliseconds.

The cost of a verify batch is the time of its width, measured at load, times the current slowdown. Other programs and
heat slow down all widths alike. The cost also grows with the context, because every token of a batch attends to the
whole context. So after a long context the cost grows nearly linearly with the width.
"""

from collections.abc import Mapping

import numpy as np

WIDTH_RATE, SLOWDOWN_RATE = 0.2, 0.2  # weights of a new timing in its width's time and in the slowdown
MAX_RATIO = 2.0  # a timing is limited to 1 / MAX_RATIO to MAX_RATIO times the expected time
STRIDE_TOKENS = 128  # the times are recomputed when the context has changed by this many tokens


class VerifyCosts:
    """Cost of a verify batch: `width_ms`, indexed by width, times `slowdown`.

    `measured` holds the times of some widths in a short context, `growth` their extra cost per token of context. Widths
    in between are interpolated linearly. The median of the last three timings of a width counts, so a single disturbed
    timing changes nothing.
    """

    def __init__(self, measured: Mapping[int, float], growth: Mapping[int, float] | None = None) -> None:
        self._short = _interpolate_widths(measured)
        self._growth = _interpolate_widths(growth or dict.fromkeys(measured, 0.0))
        self.width_ms, self._length = list(self._short), 0
        self.slowdown = 1.0
        self._recent: dict[int, tuple[float, float]] = {}  # the two newest timings of a width

    def set_context_length(self, length: int) -> None:
        """Predict the costs of verify batches after `length` tokens."""
        if abs(length - self._length) >= STRIDE_TOKENS:
            self._length = length
            self.width_ms = [short + growth * length for short, growth in zip(self._short, self._growth, strict=True)]

    def predict_ms(self, width: int) -> float:
        """Return the expected time of a verify batch."""
        return self.width_ms[min(width, len(self.width_ms) - 1)] * self.slowdown

    def predict_by_draft_length(self) -> list[float]:
        """Return the expected times of verify batches with 1, 2, … draft tokens and the newest committed token."""
        return [ms * self.slowdown for ms in self.width_ms[2:]]

    def record(self, width: int, ms: float) -> None:
        """Learn from a measured verify batch; ignore a batch that is wider than any measured at load."""
        if width >= len(self.width_ms):
            return
        expected = self.predict_ms(width)
        oldest, older = self._recent.get(width, (expected, expected))
        self._recent[width] = (older, ms)
        median = sorted((oldest, older, ms))[1]
        ratio = min(max(median / expected, 1 / MAX_RATIO), MAX_RATIO)
        for times in (self.width_ms, self._short, self._growth):
            times[width] *= ratio**WIDTH_RATE
        self.slowdown *= ratio**SLOWDOWN_RATE


def _interpolate_widths(measured: Mapping[int, float]) -> list[float]:
    widths = sorted(measured)
    times: list[float] = np.interp(range(widths[-1] + 1), widths, [measured[width] for width in widths]).tolist()
    return times
