"""Chooses the draft length that maximizes expected tokens per millisecond. Not drafting is always a choice.

Speed = E[committed tokens] / (V(n + 1) + D) with a draft of n tokens. V (cost of a verify batch) and D (cost of a
draft) are measured at load and at every step. A drafter's confidence is calibrated by comparing each of its drafts with
the tokens that are committed in the draft's place, even if the draft was not verified.
"""

from collections import defaultdict
from collections.abc import Sequence

from localdflash.engine.costs import VerifyCosts
from localdflash.engine.draft import Draft

BINS = 12  # bins of claimed confidence
PRIOR_TOKENS = 6.0  # a claimed confidence weighs as much as this many counted tokens of its bin
BIN_DECAY = 0.995  # a bin's counts are multiplied by this at each new outcome
SURVIVAL_RATE = 0.1  # weight of a new draft's outcome in `survival`
# A probe is a draft that measures a drafter although it is not expected to pay. A share of the decoding time is saved
# up for probes: the larger share for the first `INITIAL_PROBES`. At most the time of `INITIAL_PROBES` is saved up.
INITIAL_PROBES, INITIAL_PROBE_SHARE, PROBE_SHARE = 12, 0.05, 0.01
OPTIMISTIC_ACCEPTANCE = 0.95  # acceptance per token assumed for an untried drafter
MIN_SPEEDUP = 1.05  # a finished draft is verified only if that is this much faster than a step without drafting
SLOWER_RATE, FASTER_RATE = 0.05, 0.3  # weights of a draft timing above and below the average: disturbances slow down
MAX_DEPTH = 32  # draft positions whose survival is counted, since no verify batch is wider


class Calibration:
    """Acceptance of one drafter's tokens by claimed confidence, counting tokens whose predecessors were accepted."""

    def __init__(self) -> None:
        self._accepted = [PRIOR_TOKENS * (b + 0.5) / BINS for b in range(BINS)]
        self._counted = [PRIOR_TOKENS] * BINS
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
            self._accepted[b] = self._accepted[b] * BIN_DECAY + float(i < accepted)
            self._counted[b] = self._counted[b] * BIN_DECAY + 1.0
        self._update_survival(confidence, accepted)

    def _update_survival(self, confidence: Sequence[float], accepted: int) -> None:
        weight = max(SURVIVAL_RATE, 1.0 / (self.drafts + 1))  # + 1: one lucky draft is not believed at once
        depth = min(len(confidence), MAX_DEPTH)
        self.survival += [0.0] * (depth - len(self.survival))
        for i in range(depth):
            self.survival[i] += weight * (float(i < accepted) - self.survival[i])


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
        self._credit_ms = 0.0  # time saved up for probes
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
        # The best length has the best rate of drafting and verifying together. But the draft's time has been spent, so
        # the choice whether to verify at all, and which drafter's draft, depends on the verify batch alone.
        min_rate, ms_by_length = baseline * MIN_SPEEDUP, self.costs.predict_by_draft_length()
        best_length, best_rate, rate = 0, 0.0, baseline
        prefix_probability, expected = 1.0, 1.0
        for length, (confidence, ms) in enumerate(zip(draft.confidence, ms_by_length, strict=False), 1):
            prefix_probability *= acceptance(confidence)
            expected += prefix_probability
            if expected > min_rate * ms and expected > best_rate * (ms + draft_ms):
                best_length, best_rate, rate = length, expected / (ms + draft_ms), expected / ms
            bound = expected + prefix_probability * (len(draft) - length)  # if all further tokens were certain and free
            if bound <= min_rate * ms or bound <= best_rate * (ms + draft_ms):
                break
        return best_length, rate

    def predict_rate(self, drafter: str, limit: int) -> float:
        """Return the highest expected rate of drafts of at most `limit` tokens, including the draft's time."""
        return self._best_rate(drafter, self.calibration[drafter].survival[:limit])

    def _best_rate(self, drafter: str, survival: Sequence[float]) -> float:
        """Return the highest expected tokens per millisecond over all draft lengths, including the draft's time."""
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
        optimistic = [OPTIMISTIC_ACCEPTANCE ** (i + 1) for i in range(limit)]
        self._is_probing = self._credit_ms >= self.draft_ms[drafter] and self._best_rate(drafter, optimistic) > rate
        return self._is_probing

    def record_verify(self, width: int, ms: float) -> None:
        """Learn from the time of a step, excluding its draft, and save up time for probes."""
        share = INITIAL_PROBE_SHARE if self._probes < INITIAL_PROBES else PROBE_SHARE
        max_credit_ms = INITIAL_PROBES * max(self.draft_ms.values(), default=0.0)
        self._credit_ms = min(self._credit_ms + share * ms, max_credit_ms)
        self.costs.record(width, ms)

    def record_draft(self, drafter: str, ms: float) -> None:
        """Learn from a draft's time, capped at three times the expected; a probe is charged its full time."""
        expected = self.draft_ms[drafter]
        rate = FASTER_RATE if ms < expected else SLOWER_RATE
        self.draft_ms[drafter] += rate * (min(ms, 3 * expected + 0.01) - expected)  # + 0.01: a time of 0 can grow
        if self._is_probing:
            self._is_probing = False
            self._probes += 1
            self._credit_ms -= ms
