"""How a user types, and what follows from it: when a request is worth its work, and how sure an answer must be to be
shown.

If the answer is likely to come before the next key, a request starts at once; otherwise only after a part of the usual
gap has passed without a key. How sure an answer must be is learned: refusals raise the bar a little, acceptances lower
it, so that about `WANTED` of what is shown is accepted, whatever a model's probabilities are worth.
"""

LONGEST_GAP = 1.0  # seconds: a longer one is a pause, not typing
LONGEST_DELAY = 0.15  # seconds
MEMORY = 0.1  # weight of the newest gap, or answer
SURE, LEAST_SURE, MOST_SURE = 0.1, 0.03, 0.6  # confidence that is asked for at first, at least and at most
WANTED = 0.12  # share of suggestions that are accepted
GAIN = 0.03  # by which one suggestion moves what is asked for
DOUBT = 0.75  # what a typed character that agrees leaves of the doubt
DISMISSED = 4  # refusals that a suggestion counts for which the user dismissed

# Of a server that is slower than our own engine, and not ours to keep busy.
REMOTE_MAX_DELAY_SECONDS = 0.5
REMOTE_MAX_PATIENCE_SECONDS = 3.0  # that are waited for an answer besides what the client says
REMOTE_ANSWER_WEIGHT = 0.3  # of the newest answer: there are fewer of them
REMOTE_FIRST_ANSWER_SECONDS = 0.4  # until the first answer is known
REMOTE_QUICK_SECONDS = 0.15
REMOTE_DELAY_SHARE = 0.5  # of the time of an answer that no key must have come


class TypingPace:
    """Learns from keys and answers. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._gap, self._answer = 0.2, 0.05
        self._last_key = float("-inf")
        self._sure = SURE

    def key(self, now: float) -> None:
        """Count a key."""
        gap = now - self._last_key
        self._last_key = now
        if gap < LONGEST_GAP:
            self._gap += MEMORY * (gap - self._gap)

    def answered(self, seconds: float) -> None:
        """Count how long the engine took for a request."""
        self._answer += MEMORY * (seconds - self._answer)

    def delay(self, now: float) -> float:
        """How long to wait for another key before the engine is asked."""
        if self._answer <= self._gap:
            return 0.0
        return max(self._last_key + min(self._gap / 2, LONGEST_DELAY) - now, 0.0)

    @property
    def patience(self) -> float:
        """How many seconds an answer may take besides what the client says."""
        return 0.0

    @property
    def spare(self) -> bool:
        """Whether the engine may generate what nobody has asked for yet."""
        return True

    def accepted(self) -> None:
        """Count a suggestion, or a part of one, that the user took."""
        self._learn(WANTED - 1)

    def refused(self, *, dismissed: bool = False) -> None:
        """Count a suggestion that the user typed over or dismissed."""
        self._learn(WANTED * (DISMISSED if dismissed else 1))

    def confident(self, confidence: float | None, agreed: int = 0) -> bool:
        """Whether a suggestion that nobody asked for may be shown; `agreed` characters of it were typed meanwhile."""
        return confidence is None or confidence + (1 - confidence) * (1 - DOUBT**agreed) >= self._sure

    def _learn(self, more: float) -> None:
        self._sure = min(max(self._sure + GAIN * more, LEAST_SURE), MOST_SURE)


class ForeignPace(TypingPace):
    """Pace for a server that the settings name.

    A request that the next key takes back has cost the server the reading of a prompt. So the slower it answers, the
    longer no key must have come before it is asked, and the longer an answer is waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answer = REMOTE_FIRST_ANSWER_SECONDS

    def answered(self, seconds: float) -> None:
        """Count how long the server took until the first word; a model that it had to load first tells nothing."""
        self._answer += REMOTE_ANSWER_WEIGHT * (min(seconds, REMOTE_MAX_PATIENCE_SECONDS) - self._answer)

    def delay(self, now: float) -> float:
        """How long to wait for another key before the server is asked."""
        if self._answer <= self._gap / 2:
            return 0.0
        return max(self._last_key + min(self._answer * REMOTE_DELAY_SHARE, REMOTE_MAX_DELAY_SECONDS) - now, 0.0)

    @property
    def patience(self) -> float:
        """See `TypingPace`."""
        return min(2 * self._answer, REMOTE_MAX_PATIENCE_SECONDS)

    @property
    def spare(self) -> bool:
        """See `TypingPace`: only a quick server is done before the next key, and hardly notices."""
        return self._answer < REMOTE_QUICK_SECONDS
