"""End an answer that repeats one stretch of text again and again.

The period is the distance from the last characters to their previous occurrence. Text repeats if it has had the same
period for at least four rounds and 400 characters. The place of the cut does not depend on the pieces of the text.
"""

ROUNDS, MIN_CHARS = 4, 400
MAX_ROUND_CHARS = 1_000  # characters of a round
_PROBE_CHARS = 32  # characters that are looked for


class Repetition:
    """An `Ending`."""

    def __init__(self) -> None:
        self.ended = False
        self._tail = ""

    @property
    def reason(self) -> str:
        """See `Ending`; as /complete calls it."""
        return "repeat" if self.ended else ""

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`."""
        if self.ended:
            return ""
        whole = self._tail + text
        for end in range(len(self._tail) + 1, len(whole) + 1):
            if _repeats(whole, end):
                self.ended = True
                return whole[len(self._tail) : end]
        self._tail = whole[-ROUNDS * MAX_ROUND_CHARS :]
        return text

    def resumes(self) -> bool:
        """See `Ending`: an answer ends where the model ends it."""
        return False

    def finish(self) -> str:
        """See `Ending`: nothing is held back."""
        return ""


def _repeats(text: str, end: int) -> bool:
    """Return whether text[:end] ends in a repetition."""
    if end < MIN_CHARS:
        return False
    before = text.rfind(text[end - _PROBE_CHARS : end], max(0, end - MAX_ROUND_CHARS - _PROBE_CHARS), end - 1)
    period = end - _PROBE_CHARS - before
    known = max(ROUNDS * period, MIN_CHARS)
    return before >= 0 and known <= end and text[end - known + period : end] == text[end - known : end - period]
