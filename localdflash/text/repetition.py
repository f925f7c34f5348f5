"""Ends an answer that repeats one stretch of text again and again, with nothing between.

The text's period is the distance of its last characters to the nearest place where they stood before. It repeats if it
has had this period for at least four rounds and 400 characters: a rule or a row of zeros is shorter, and what a model
says so often it does not leave by itself. Where the text is cut does not depend on the pieces in which it comes.
"""

ROUNDS, LEAST = 4, 400
LONGEST = 1_000  # characters of a round
_LAST = 32  # characters that are looked for


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
        self._tail = whole[-ROUNDS * LONGEST :]
        return text

    def resumes(self) -> bool:
        """See `Ending`: an answer ends where the model ends it."""
        return False

    def finish(self) -> str:
        """See `Ending`: nothing is held back."""
        return ""


def _repeats(text: str, end: int) -> bool:
    """Return whether text[:end] ends in a repetition."""
    if end < LEAST:
        return False
    before = text.rfind(text[end - _LAST : end], max(0, end - LONGEST - _LAST), end - 1)
    period = end - _LAST - before
    known = max(ROUNDS * period, LEAST)
    return before >= 0 and known <= end and text[end - known + period : end] == text[end - known : end - period]
