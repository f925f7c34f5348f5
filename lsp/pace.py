"""How a user types, and what that means for asking the engine: when a request is worth its work, and how sure an answer
must be to be shown.

A request is started at once where it is answered before the next key is likely to come; else only after a part of the
usual gap has passed without one. Refused and ignored suggestions make the server quieter for a while.
"""

LONGEST_GAP = 1.0  # seconds: a longer one is a pause, not typing
LONGEST_DELAY = 0.15  # seconds
MEMORY = 0.1  # weight of the newest gap, or answer
SURE, SURER = 0.3, 0.08  # confidence that is asked for, and how much more for each suggestion refused in a row
SUREST = 0.7
FORGETS = 60.0  # seconds after which refusals no longer count


class Pace:
    """Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._gap, self._answer = 0.2, 0.05
        self._last_key = self._last_refusal = float("-inf")
        self._refused = 0

    def key(self, now: float) -> None:
        """A key was typed."""
        gap = now - self._last_key
        self._last_key = now
        if gap < LONGEST_GAP:
            self._gap += MEMORY * (gap - self._gap)

    def answered(self, seconds: float) -> None:
        """A request was answered by the engine after so long."""
        self._answer += MEMORY * (seconds - self._answer)

    def delay(self, now: float) -> float:
        """How long to wait for another key before the engine is asked."""
        if self._answer <= self._gap:
            return 0.0
        return max(self._last_key + min(self._gap / 2, LONGEST_DELAY) - now, 0.0)

    def accepted(self) -> None:
        """The user took a suggestion, or a part of it."""
        self._refused = 0

    def refused(self, now: float) -> None:
        """The user typed something else than was shown, or dismissed it."""
        self._refused = self.refusals(now) + 1
        self._last_refusal = now

    def refusals(self, now: float) -> int:
        """How many in a row, lately."""
        return self._refused if now - self._last_refusal < FORGETS else 0

    def confident(self, confidence: float | None, now: float) -> bool:
        """Whether a suggestion that nobody asked for may be shown."""
        if confidence is None:
            return True
        return confidence >= min(SURE + SURER * max(self.refusals(now) - 1, 0), SUREST)
