"""Decides whether asking drafters is worth its time, by tokens a millisecond with it and without.

A model whose step takes a tenth of a millisecond may lose more by looking for drafts (microseconds of Python) than they
bring. So whole steps of both kinds are timed: the better way is taken, the other one tried now and then. Texts change:
one draft that pays makes the next steps look again. If looking costs next to nothing beside a step, it is always done.
"""

MEMORY = 0.9  # share of what was counted that is left after one more step
LOOK, REST = 16, 32  # steps after which the way that is not taken is tried
STREAK = 4  # steps that look on after one that was clearly faster than plain decoding
CLEARLY = 1.2
CHEAP = 0.03  # of a plain step


class WayWorth:
    """Tokens and milliseconds of recent steps of one kind, older ones fading."""

    def __init__(self) -> None:
        self.tokens = self.ms = 0.0

    def count(self, tokens: int, ms: float) -> None:
        """Count one more step; one that was disturbed counts as twice the usual time at most."""
        if self.tokens:
            ms = min(ms, 2 * tokens * self.ms / self.tokens)
        self.tokens = self.tokens * MEMORY + tokens
        self.ms = self.ms * MEMORY + ms

    @property
    def rate(self) -> float:
        """Tokens a millisecond; 0 before the first step."""
        return self.tokens / self.ms if self.ms else 0.0


class Worth:
    """Tells for each step whether to look for drafts."""

    def __init__(self) -> None:
        self._looking, self._resting = WayWorth(), WayWorth()
        self._since = 0  # steps since the other way was tried
        self._streak = 0
        self._cost = 0.0  # milliseconds of looking

    def looks(self, plain_ms: float) -> bool:
        """Whether the next step looks for drafts; `plain_ms` is the time of a plain step."""
        if self._cost < CHEAP * plain_ms:
            return True
        better = self._streak > 0 or self._looking.rate >= self._resting.rate
        self._since += 1
        if self._since < (REST if better else LOOK):
            return better
        self._since = 0
        return not better

    def looked(self, tokens: int, ms: float, looking_ms: float) -> None:
        """Count a step that looked: the tokens it committed, its time, and the part spent on looking."""
        self._looking.count(tokens, ms)
        paid = tokens > CLEARLY * self._resting.rate * ms
        self._streak = STREAK if paid else max(self._streak - 1, 0)
        self._cost += (1 - MEMORY) * (looking_ms - self._cost)

    def rested(self, ms: float) -> None:
        """Count a step that did not look, which commits one token."""
        self._resting.count(1, ms)
