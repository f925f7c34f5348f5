"""Pace of typing: how long a request waits for another key, and which confidence an answer needs to be shown."""

MAX_GAP_SECONDS = 1.0  # a longer gap between keys is a pause, not typing
MAX_DELAY_SECONDS = 0.15
NEWEST_WEIGHT = 0.1  # weight of the newest gap or answer in the moving average
# Required of a suggestion to be shown. Of those below 0.4 one in twelve was of use (log/2026-11-26-after-enter.md).
START_CONFIDENCE, MIN_CONFIDENCE, MAX_CONFIDENCE = 0.4, 0.3, 0.6
TARGET_ACCEPTANCE = 0.12  # share of accepted suggestions at which the required confidence does not change
LEARNING_RATE = 0.03  # change of the required confidence per suggestion and unit of error
DOUBT_PER_CHARACTER = 0.75  # each typed character that agrees multiplies `1 - confidence` by this
DISMISSAL_WEIGHT = 4  # a dismissed suggestion counts as this many that were typed over

# For a remote server, which is slower than our engine and serves others too.
REMOTE_MAX_DELAY_SECONDS = 0.5
REMOTE_MAX_PATIENCE_SECONDS = 3.0  # longest wait for an answer beyond the client's deadline
REMOTE_ANSWER_WEIGHT = 0.3  # NEWEST_WEIGHT for remote answers; larger, because they are fewer
REMOTE_FIRST_ANSWER_SECONDS = 0.4  # start value of the moving average
REMOTE_QUICK_SECONDS = 0.15  # time to first token below which the server may generate ahead
REMOTE_DELAY_SHARE = 0.5  # share of an answer's time that a request waits for another key


class TypingPace:
    """Moving averages of the gaps between keys and the answers' TTFT, in seconds; `now` is a monotonic clock."""

    def __init__(self) -> None:
        self._gap, self._answer_seconds = 0.2, 0.05
        self._last_key = float("-inf")
        self._required = START_CONFIDENCE

    def key(self, now: float) -> None:
        """Record a key."""
        gap = now - self._last_key
        self._last_key = now
        if gap < MAX_GAP_SECONDS:
            self._gap += NEWEST_WEIGHT * (gap - self._gap)

    def answered(self, seconds: float) -> None:
        """Record the time to first token of a request."""
        self._answer_seconds += NEWEST_WEIGHT * (seconds - self._answer_seconds)

    def delay(self, now: float) -> float:
        """Return how long to wait for another key before a request."""
        if self._answer_seconds <= self._gap:
            return 0.0
        return max(self._last_key + min(self._gap / 2, MAX_DELAY_SECONDS) - now, 0.0)

    @property
    def patience(self) -> float:
        """Return the seconds that an answer may take beyond the client's deadline."""
        return 0.0

    @property
    def may_generate_ahead(self) -> bool:
        """Return whether the engine may generate ahead."""
        return True

    def accepted(self) -> None:
        """Record a suggestion, or a part of one, that the user accepted."""
        self._learn(TARGET_ACCEPTANCE - 1)

    def refused(self, *, dismissed: bool = False) -> None:
        """Record a suggestion that the user typed over or dismissed."""
        self._learn(TARGET_ACCEPTANCE * (DISMISSAL_WEIGHT if dismissed else 1))

    def is_confident(self, confidence: float | None, agreed: int = 0) -> bool:
        """Return whether an automatic suggestion may be shown; the user typed its first `agreed` characters."""
        return confidence is None or confidence + (1 - confidence) * (1 - DOUBT_PER_CHARACTER**agreed) >= self._required

    def _learn(self, error: float) -> None:
        self._required = min(max(self._required + LEARNING_RATE * error, MIN_CONFIDENCE), MAX_CONFIDENCE)


class RemotePace(TypingPace):
    """Pace for a remote server, where each request that the next key cancels has cost an evaluation of its prompt."""

    def __init__(self) -> None:
        super().__init__()
        self._answer_seconds = REMOTE_FIRST_ANSWER_SECONDS

    def answered(self, seconds: float) -> None:
        """See `TypingPace`; the time of a model that had to be loaded first is capped."""
        seconds = min(seconds, REMOTE_MAX_PATIENCE_SECONDS)
        self._answer_seconds += REMOTE_ANSWER_WEIGHT * (seconds - self._answer_seconds)

    def delay(self, now: float) -> float:
        """Return how long to wait for another key before a request."""
        if self._answer_seconds <= self._gap / 2:
            return 0.0
        return max(self._last_key + min(self._answer_seconds * REMOTE_DELAY_SHARE, REMOTE_MAX_DELAY_SECONDS) - now, 0.0)

    @property
    def patience(self) -> float:
        """See `TypingPace`."""
        return min(2 * self._answer_seconds, REMOTE_MAX_PATIENCE_SECONDS)

    @property
    def may_generate_ahead(self) -> bool:
        """See `TypingPace`: only a quick server is done before the next key."""
        return self._answer_seconds < REMOTE_QUICK_SECONDS
