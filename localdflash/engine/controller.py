"""Chooses the draft length that maximizes expected tokens per millisecond. Not drafting is always a choice.

Speed = E[committed tokens] / (V(n + 1) + D) with a draft of n tokens. V (cost of a verify batch) and D (cost of a
draft) are measured at load and at every step. A drafter's confidence is calibrated on its earlier drafts, verified or
not, by comparing each draft with the tokens committed later.
"""

from collections import defaultdict
from collections.abc import Sequence

from localdflash.engine.costs import VerifyCosts
from localdflash.engine.draft import Draft

BINS = 12  # bins of claimed confidence
PRIOR_DRAFTS = 6.0  # weight of a claimed confidence before any outcome was counted, in drafts
BIN_DECAY = 0.995  # factor on a bin's counts at each new outcome
SURVIVAL_RATE = 0.1  # weight of a new draft's outcome
INITIAL_PROBES = 12  # probes (drafts that only measure a drafter) at the initial share; also the most to save up for
INITIAL_PROBE_SHARE = 0.05  # share of the decoding time for the first probes
PROBE_SHARE = 0.01  # share of the decoding time for later probes
OPTIMISTIC_ACCEPTANCE = 0.95  # acceptance per token assumed for an untried drafter
MIN_SPEEDUP = 1.05  # of verifying a finished draft over a plain step; with less, it is not verified
SLOWER_RATE, FASTER_RATE = 0.05, 0.3  # weights of a new draft timing: disturbances only ever make it longer
MAX_DEPTH = 32  # draft positions whose survival is counted, since no verify batch is wider


class Calibration:
    """Acceptance of one drafter's tokens by claimed confidence, counting tokens whose predecessors were accepted."""

    def __init__(self) -> None:
        self._accepted = [PRIOR_DRAFTS * (b + 0.5) / BINS for b in range(BINS)]
        self._counted = [PRIOR_DRAFTS] * BINS
        self.survival: list[float] = []  # share of drafts whose first k tokens were accepted
        self.drafts = 0

    def acceptance(self, confidence: float) -> float:
        """Return the estimated acceptance of a token with this claimed confidence."""
        b = _bin(confidence)
        return self._accepted[b] / self._counted[b]

    def record_outcome(self, confidence: Sequence[float], accepted: int) -> None:
        """Count a draft of which the first `accepted` tokens were right."""
        self.drafts += 1
        for i in range(min(accepted + 1, len(confidence))):
            b = _bin(confidence[i])
            self._accepted[b] = self._accepted[b] * BIN_DECAY + (i < accepted)
            self._counted[b] = self._counted[b] * BIN_DECAY + 1.0
        self._update_survival(confidence, accepted)

    def _update_survival(self, confidence: Sequence[float], accepted: int) -> None:
        weight = max(SURVIVAL_RATE, 1.0 / (self.drafts + 1))  # + 1: one lucky draft is not believed at once
        depth = min(len(confidence), MAX_DEPTH)
        self.survival += [0.0] * (depth - len(self.survival))
        for i in range(depth):
            self.survival[i] += weight * ((i < accepted) - self.survival[i])


def _bin(confidence: float) -> int:
    """Return the bin of a claimed confidence; NaN (a damaged drafter) counts as 0."""
    return min(int(min(confidence, 1.0) * BINS), BINS - 1) if confidence > 0.0 else 0


class Controller:
    """Costs and calibrations of one pair on one machine. Times are milliseconds.

    `verify_ms` holds the cost of some batch widths, 1 among them, and `growth` their extra cost per token of context.
    `draft_ms` holds the cost of a draft by drafter; a drafter that is missing is free.
    """

    def __init__(
        self, verify_ms: dict[int, float], draft_ms: dict[str, float], growth: dict[int, float] | None = None
    ) -> None:
        self.costs = VerifyCosts(verify_ms, growth)
        self.draft_ms = defaultdict[str, float](float, draft_ms)
        self.calibration = defaultdict[str, Calibration](Calibration)
        self._credit_ms = self._needed_ms = 0.0  # saved up for probes; cost of the last considered probe
        self._probes = 0
        self._is_probing = False

    @property
    def baseline_rate(self) -> float:
        """Tokens per millisecond without drafting."""
        return 1.0 / self.costs.predict_ms(1)

    def choose_prefix(self, draft: Draft) -> tuple[int, float]:
        """Return how many tokens of a draft to verify, and the expected tokens per millisecond of that verify batch."""
        acceptance = self.calibration[draft.drafter].acceptance
        draft_ms = self.draft_ms[draft.drafter]
        baseline = self.baseline_rate
        floor, verify_ms = baseline * MIN_SPEEDUP, self.costs.predict_by_draft_length()
        count, best, rate = 0, 0.0, baseline
        prefix_probability, expected, remaining = 1.0, 1.0, len(draft)
        for i, (confidence, cost) in enumerate(zip(draft.confidence, verify_ms, strict=False)):
            prefix_probability *= acceptance(confidence)
            expected += prefix_probability
            remaining -= 1
            if expected > floor * cost and expected > best * (cost + draft_ms):
                count, best, rate = i + 1, expected / (cost + draft_ms), expected / cost
            bound = expected + prefix_probability * remaining  # if all remaining tokens were certain and free
            if bound <= floor * cost or bound <= best * (cost + draft_ms):
                break
        return count, rate

    def predict_rate(self, drafter: str, limit: int) -> float:
        """Return the highest expected tokens per millisecond of a drafter, including the cost of its draft."""
        return self._best_rate(drafter, self.calibration[drafter].survival[:limit])

    def _best_rate(self, drafter: str, survival: Sequence[float]) -> float:
        """Return the highest expected tokens per millisecond over all lengths of a draft."""
        draft_ms, best, expected = self.draft_ms[drafter], 0.0, 1.0
        for prefix_probability, ms in zip(survival, self.costs.predict_by_draft_length(), strict=False):
            expected += prefix_probability
            best = max(best, expected / (ms + draft_ms))
        return best

    def should_draft(self, drafter: str, limit: int, rate: float) -> bool:
        """Return whether a model should draft: its draft is expected to beat `rate`, or a probe starts."""
        return self.predict_rate(drafter, limit) > rate or self.start_probe(drafter, limit, rate)

    def start_probe(self, drafter: str, limit: int, rate: float) -> bool:
        """Start a probe if its time is saved up and the drafter's best case beats `rate`; return whether it started."""
        self._needed_ms = self.draft_ms[drafter]
        optimistic = [OPTIMISTIC_ACCEPTANCE ** (i + 1) for i in range(limit)]
        self._is_probing = self._credit_ms >= self._needed_ms and self._best_rate(drafter, optimistic) > rate
        return self._is_probing

    def record_verify(self, width: int, ms: float) -> None:
        """Learn from the time of a step, excluding its draft, and save up time for probes."""
        share = INITIAL_PROBE_SHARE if self._probes < INITIAL_PROBES else PROBE_SHARE
        max_credit_ms = max(INITIAL_PROBES * max(self.draft_ms.values(), default=0.0), self._needed_ms)
        self._credit_ms = min(self._credit_ms + share * ms, max_credit_ms)
        self.costs.record(width, ms)

    def record_draft(self, drafter: str, ms: float) -> None:
        """Learn from a draft's time, capped at three times the expected; a probe is charged its full time."""
        expected = self.draft_ms[drafter]
        rate = FASTER_RATE if ms < expected else SLOWER_RATE
        self.draft_ms[drafter] += rate * (min(ms, 3 * expected + 0.01) - expected)
        if self._is_probing:
            self._is_probing = False
            self._probes += 1
            self._credit_ms -= ms
