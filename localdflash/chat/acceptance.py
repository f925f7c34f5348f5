"""Running statistics of an answer for the footer and the speed panel."""

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from localdflash.chat.messages import StepRecord

WINDOW_SECONDS = 2.0  # `rate` averages over this time
MAX_RATES = 120
RATE_SECONDS = 0.5  # interval of the entries of `rates`


class Acceptance:
    """Running statistics of one answer's verify steps. The time to first token starts when this object is created."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = self.tokens = self.drafted = self.accepted = 0
        self.ttft_ms: float | None = None
        self.drafted_counts: list[int] = []  # drafted tokens by draft position
        self.by_drafter = Counter[str]()  # number of steps by drafter; "": steps without a draft
        self.rates: deque[float] = deque(maxlen=MAX_RATES)  # past values of `rate`, for a graph
        self._clock, self._started = clock, clock()
        self._accepted_counts: list[int] = []  # accepted tokens by draft position
        self._step_ms: list[float] = []  # time of each step, sorted
        self._arrivals: deque[tuple[float, int]] = deque()  # time, tokens so far; first: before the window
        self._last_rate_time = self._started

    def add(self, step: StepRecord | None, text: str = "") -> None:
        """Record text and a verify step that arrived now; the step, or the text, may be missing."""
        now = self._clock()
        if text and self.ttft_ms is None:
            self.ttft_ms = (now - self._started) * 1e3
        if not step:
            return
        self.steps += 1
        self.tokens += len(step.sizes)
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.by_drafter[step.drafter] += 1
        missing = step.drafted - len(self.drafted_counts)
        self.drafted_counts += [0] * missing
        self._accepted_counts += [0] * missing
        for position in range(step.drafted):
            self.drafted_counts[position] += 1
            self._accepted_counts[position] += int(position < step.accepted)
        insort(self._step_ms, step.ms)
        self._arrivals.append((now, self.tokens))
        while len(self._arrivals) > 2 and self._arrivals[1][0] <= now - WINDOW_SECONDS:
            self._arrivals.popleft()
        if now - self._last_rate_time >= RATE_SECONDS and (rate := self.rate) is not None:
            self._last_rate_time = now
            self.rates.append(rate)

    @property
    def rate(self) -> float | None:
        """Return the tokens per second of the last `WINDOW_SECONDS`, 0 if no step arrived; None before any step."""
        if not self._arrivals:
            return None
        (first, before), (last, tokens) = self._arrivals[0], self._arrivals[-1]
        if self._clock() - last > WINDOW_SECONDS:
            return 0.0
        return (tokens - before) / (last - first) if last > first else self.average_rate

    @property
    def average_rate(self) -> float | None:
        """Return the tokens per second of the whole answer, over the time of its steps."""
        return self.tokens / total * 1e3 if (total := sum(self._step_ms)) else None

    @property
    def tau(self) -> float | None:
        """Return the mean number of committed tokens per verify step; None before any step."""
        return self.tokens / self.steps if self.steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Return the share of drafted tokens that were accepted; None if no token was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_by_position(self) -> Sequence[float]:
        """Return the share of accepted tokens by draft position."""
        counts = zip(self._accepted_counts, self.drafted_counts, strict=True)
        return [accepted / drafted for accepted, drafted in counts]

    @property
    def step_ms(self) -> tuple[float, float] | None:
        """Return the p50 and p95 of the step time in milliseconds; None before any step."""
        p50, p95 = (-(-len(self._step_ms) * percent // 100) - 1 for percent in (50, 95))
        return (self._step_ms[p50], self._step_ms[p95]) if self._step_ms else None

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
            "accept_by_slot": list(self.acceptance_by_position),
            "steps_by_drafter": dict(self.by_drafter),
            "tokens_per_second": self.average_rate or 0.0,
        }
