"""Running statistics of an answer for the footer and the speed panel."""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from localdflash.chat.messages import StepRecord

WINDOW_SECONDS = 2.0  # seconds that the rolling rate looks back
MAX_RATES = 120  # rates that are kept, one for each half second
RATE_SECONDS = 0.5  # seconds between two of them


class Acceptance:
    """Running statistics of one answer's steps, for the footer and the speed panel.

    `clock` returns seconds; its first call marks the time of the request. None means unknown: remote servers report no
    steps.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = self.tokens = self.drafted = self.accepted = 0
        self.ttft_ms: float | None = None  # from being asked for to the first text
        self.offered: list[int] = []  # drafted tokens, by slot
        self.by_drafter: dict[str, int] = {}  # steps; "" where nothing was drafted
        self.rates: deque[float] = deque(maxlen=MAX_RATES)  # tokens a second over time
        self._clock, self._asked = clock, clock()
        self._taken: list[int] = []  # accepted tokens, by slot
        self._ms: list[float] = []  # of the steps, sorted
        self._total_ms = 0.0
        self._arrived: deque[tuple[float, int]] = deque()  # when, and how many tokens: the last before the window first
        self._recent = 0  # tokens of them, without the first
        self._noted = self._asked

    def add(self, step: StepRecord | None, text: str = "") -> None:
        """Count a piece that has just arrived."""
        now = self._clock()
        if text and self.ttft_ms is None:
            self.ttft_ms = (now - self._asked) * 1e3
        if not step:
            return
        count = len(step.sizes)
        self.steps += 1
        self.tokens += count
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.by_drafter[step.drafter] = self.by_drafter.get(step.drafter, 0) + 1
        self._count_slots(step)
        insort(self._ms, step.ms)
        self._total_ms += step.ms
        self._arrive(now, count)

    def _count_slots(self, step: StepRecord) -> None:
        missing = step.drafted - len(self.offered)
        self.offered += [0] * missing
        self._taken += [0] * missing
        for slot in range(step.drafted):
            self.offered[slot] += 1
            self._taken[slot] += slot < step.accepted

    def _arrive(self, now: float, count: int) -> None:
        if self._arrived:
            self._recent += count
        self._arrived.append((now, count))
        while len(self._arrived) > 2 and self._arrived[1][0] <= now - WINDOW_SECONDS:
            self._arrived.popleft()
            self._recent -= self._arrived[0][1]
        if now - self._noted >= RATE_SECONDS and (rate := self.rate) is not None:
            self._noted = now
            self.rates.append(rate)

    @property
    def rate(self) -> float | None:
        """Return the rate of the last moments in tokens per second; 0 if no token arrived."""
        if not self._arrived:
            return None
        (first, _), (last, _) = self._arrived[0], self._arrived[-1]
        if self._clock() - last > WINDOW_SECONDS:
            return 0.0
        return self._recent / (last - first) if last > first else self.average

    @property
    def average(self) -> float | None:
        """Return the tokens per second of the whole answer, over the time of its steps."""
        return self.tokens / self._total_ms * 1e3 if self._total_ms else None

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
        """Return the share of accepted tokens by slot of the draft."""
        return [taken / offered for taken, offered in zip(self._taken, self.offered, strict=True)]

    @property
    def step_ms(self) -> tuple[float, float] | None:
        """Return the p50 and p95 of the step time in milliseconds."""
        return (self.percentile(50), self.percentile(95)) if self._ms else None

    def percentile(self, share: int) -> float:
        """Return a percentile of the step time in milliseconds; 0 without steps."""
        return self._ms[max(-(-len(self._ms) * share // 100), 1) - 1] if self._ms else 0.0

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
