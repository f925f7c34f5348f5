"""Decides when each piece of an answer is shown: text comes in bursts and is shown evenly.

Each burst is spread over the time until the next one is expected. Nothing is lost or reordered, no character is shown
later than LAG_SECONDS after it came, and the pace of showing follows the pace of arrival.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LAG_SECONDS = 0.15  # seconds
_WEIGHT = 0.3  # of the newest interval in the expected one


@dataclass(slots=True)
class _Burst:
    text: str
    came: float
    spread: float  # seconds over which it is shown
    shown: int = 0  # characters


class DisplayPace:
    """Queue that releases arriving text at an even pace; `whole` releases each burst at once (no motion)."""

    def __init__(self, *, whole: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._whole = whole
        self._clock = clock
        self._bursts: deque[_Burst] = deque()
        self._expected = 0.0  # seconds between bursts
        self._last: float | None = None

    def put(self, text: str) -> None:
        """Add text that arrived."""
        if not text:
            return
        now = self._clock()
        if self._last is not None:
            interval = min(now - self._last, LAG_SECONDS)
            self._expected += (interval - self._expected) * _WEIGHT
        self._last = now
        self._bursts.append(_Burst(text, now, 0.0 if self._whole else min(self._expected, LAG_SECONDS)))

    def take(self) -> str:
        """Return what is due now, in order, and remove it from the queue."""
        now = self._clock()
        due: list[str] = []
        while self._bursts:
            burst = self._bursts[0]
            end = _due(burst, now)
            due.append(burst.text[burst.shown : end])
            burst.shown = max(burst.shown, end)
            if burst.shown < len(burst.text):
                break
            self._bursts.popleft()
        return "".join(due)

    def rest(self) -> str:
        """Return everything still queued, due or not."""
        left = "".join(burst.text[burst.shown :] for burst in self._bursts)
        self._bursts.clear()
        return left

    def __bool__(self) -> bool:
        """Return whether any text is still queued."""
        return bool(self._bursts)


def _due(burst: _Burst, now: float) -> int:
    """Return the number of characters of the burst that are due; the first is due at once."""
    passed = now - burst.came
    if passed >= burst.spread:
        return len(burst.text)
    return 1 + int(len(burst.text) * passed / burst.spread) if passed >= 0 else 0


def motion_unwanted(environment: Mapping[str, str]) -> bool:
    """Return whether the user asked for no motion: NO_MOTION, or TEXTUAL_ANIMATIONS=none."""
    return bool(environment.get("NO_MOTION")) or environment.get("TEXTUAL_ANIMATIONS", "").lower() == "none"
