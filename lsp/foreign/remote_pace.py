"""How patient to be with a server that is slower than our own engine, and not ours to keep busy.

A request that the next key takes back has cost the server the reading of a prompt. So the slower it answers, the
longer no key must have come before it is asked, and the longer an answer is waited for.
"""

from localdflash.lsp.typing_pace import TypingPace

LONGEST_DELAY = 0.5  # seconds
LONGEST_PATIENCE = 3.0  # seconds that are waited for an answer besides what the client says
LEARNED = 0.3  # weight of the newest answer: there are fewer of them
FIRST = 0.4  # seconds that an answer takes, as far as nothing is known
QUICK = 0.15  # seconds
SHARE = 0.5  # of the time of an answer that no key must have come


class ForeignPace(TypingPace):
    """See `TypingPace`."""

    def __init__(self) -> None:
        super().__init__()
        self._answer = FIRST

    def answered(self, seconds: float) -> None:
        """Count how long the server took until the first word; a model that it had to load first tells nothing."""
        self._answer += LEARNED * (min(seconds, LONGEST_PATIENCE) - self._answer)

    def delay(self, now: float) -> float:
        """How long to wait for another key before the server is asked."""
        if self._answer <= self._gap / 2:
            return 0.0
        return max(self._last_key + min(self._answer * SHARE, LONGEST_DELAY) - now, 0.0)

    @property
    def patience(self) -> float:
        """See `TypingPace`."""
        return min(2 * self._answer, LONGEST_PATIENCE)

    @property
    def spare(self) -> bool:
        """See `TypingPace`: only a quick server is done before the next key, and hardly notices."""
        return self._answer < QUICK
