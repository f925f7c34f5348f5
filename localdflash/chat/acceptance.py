"""Running statistics of an answer for the footer and the speed panel."""

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from localdflash.chat.messages import StepRecord

WINDOW_SECONDS = 2.0  # that the rolling rate looks back
MAX_RATES = 120
RATE_SECONDS = 0.5  # between two of `rates`


class Acceptance:
    """Running statistics of one answer's steps since the first call of `clock`. Without steps, values are None."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = self.tokens = self.drafted = self.accepted = 0
        self.ttft_ms: float | None = None
        self.offered: list[int] = []  # drafted tokens, by draft position
        self.by_drafter = Counter[str]()  # steps; "" counts steps without a draft
        self.rates: deque[float] = deque(maxlen=MAX_RATES)  # tokens per second over time
        self._clock, self._asked = clock, clock()
        self._taken: list[int] = []  # accepted tokens, by draft position
        self._ms: list[float] = []  # of the steps, sorted
        self._arrived: deque[tuple[float, int]] = deque()  # time and tokens so far, one before the window included
        self._noted = self._asked

    def add(self, step: StepRecord | None, text: str = "") -> None:
        """Count a piece that has just arrived."""
        now = self._clock()
        if text and self.ttft_ms is None:
            self.ttft_ms = (now - self._asked) * 1e3
        if not step:
            return
        self.steps += 1
        self.tokens += len(step.sizes)
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.by_drafter[step.drafter] += 1
        missing = step.drafted - len(self.offered)
        self.offered += [0] * missing
        self._taken += [0] * missing
        for slot in range(step.drafted):
            self.offered[slot] += 1
            self._taken[slot] += slot < step.accepted
        insort(self._ms, step.ms)
        self._arrived.append((now, self.tokens))
        while len(self._arrived) > 2 and self._arrived[1][0] <= now - WINDOW_SECONDS:
            self._arrived.popleft()
        if now - self._noted >= RATE_SECONDS and (rate := self.rate) is not None:
            self._noted = now
            self.rates.append(rate)

    @property
    def rate(self) -> float | None:
        """Return the rate of the last moments in tokens per second; 0 if no token arrived."""
        if not self._arrived:
            return None
        (first, before), (last, tokens) = self._arrived[0], self._arrived[-1]
        if self._clock() - last > WINDOW_SECONDS:
            return 0.0
        return (tokens - before) / (last - first) if last > first else self.average

    @property
    def average(self) -> float | None:
        """Return the tokens per second of the whole answer, over the time of its steps."""
        return self.tokens / total * 1e3 if (total := sum(self._ms)) else None

    @property
    def tau(self) -> float | None:
        """Return the tokens per verify step."""
        return self.tokens / self.steps if self.steps else None

    @property
    def share(self) -> float | None:
        """Return the share of drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance(self) -> Sequence[float]:
        """Return the share of accepted tokens by draft position."""
        return [taken / offered for taken, offered in zip(self._taken, self.offered, strict=True)]

    @property
    def step_ms(self) -> tuple[float, float] | None:
        """Return the p50 and p95 of the step time in milliseconds."""
        p50, p95 = (-(-len(self._ms) * share // 100) - 1 for share in (50, 95))
        return (self._ms[p50], self._ms[p95]) if self._ms else None

    def numbers(self) -> Mapping[str, object]:
        """Return the statistics of a stopped answer, under the names of `Message.numbers`."""
        if not self.steps:
            return {}
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "tau": self.tau,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accept_by_slot": list(self.acceptance),
            "steps_by_drafter": dict(self.by_drafter),
            "tokens_per_second": self.average or 0.0,
        }
