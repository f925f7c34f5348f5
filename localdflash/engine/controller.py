"""Chooses how much to draft: what maximizes expected tokens per millisecond. Not drafting is always a choice.

Speed = E[committed tokens] / (V(n + 1) + D) with a draft of n tokens. V (cost of a verify batch) and D (cost of a
draft) are measured at load and at every step. A drafter's confidence is calibrated against earlier drafts, verified or
not: each is compared with the tokens committed later.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from localdflash.engine.costs import DraftCost, VerifyCosts
from localdflash.engine.draft import Draft

BINS = 12  # of claimed confidence
PRIOR_DRAFTS = 6.0  # weight of a claimed confidence before any outcome was counted, in drafts
BIN_DECAY = 0.995  # factor on a bin's counts at each new outcome
SURVIVAL_RATE = 0.1  # weight of a new draft's outcome
DEPTH_DECAY = 0.95  # factor on the counts of a depth at each new draft
DEPTH_PRIOR_DRAFTS = 2.0  # weight of a depth's prior, which is the depth before it, in drafts
INITIAL_PROBES = 12  # number of probes before `PROBE_SHARE` applies; the time of as many may be saved up
INITIAL_PROBE_SHARE = 0.05  # share of the decoding time for the first probes
PROBE_SHARE = 0.01  # share for later probes
INITIAL_ANSWER_TOKENS = 64.0  # expected length of the first answer
ANSWER_RATE = 0.2  # weight of a new answer's length
OPTIMISTIC_ACCEPTANCE = 0.95  # acceptance per token assumed for an untried drafter
MIN_SPEEDUP = 1.05  # expected speedup over not drafting below which no draft is verified
MAX_DEPTH = 32  # tokens whose survival is counted: no verify batch is wider


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


class DepthCalibration(Calibration):
    """Calibration of an autoregressive drafter, whose drafts are cut where they stop paying.

    The acceptance of each depth is counted separately, and old counts decay. A depth that was not drafted lately is
    expected to do as well as the depth before it, so it is tried again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._accepted_at, self._counted_at = [0.0] * MAX_DEPTH, [0.0] * MAX_DEPTH

    def _update_survival(self, confidence: Sequence[float], accepted: int) -> None:
        chance, alive = 0.0, 1.0
        weight = 1.0 / self.drafts  # of the prior, which is 0: one lucky draft is not believed at once
        self.survival = []
        for i in range(MAX_DEPTH):
            has_outcome = i < min(accepted + 1, len(confidence))
            self._counted_at[i] = self._counted_at[i] * DEPTH_DECAY + has_outcome
            self._accepted_at[i] = self._accepted_at[i] * DEPTH_DECAY + (has_outcome and i < accepted)
            chance = (self._accepted_at[i] + weight * chance) / (self._counted_at[i] + weight)
            alive *= chance
            self.survival.append(alive)
            weight = DEPTH_PRIOR_DRAFTS


def _bin(confidence: float) -> int:
    """Return the bin of a claimed confidence; NaN (a damaged drafter) counts as 0."""
    return min(int(min(confidence, 1.0) * BINS), BINS - 1) if confidence > 0.0 else 0


class Controller:
    """Costs and calibrations of one pair on one machine. Times are milliseconds.

    `verify_ms` holds the cost of some batch widths, 1 among them, and `growth` their extra cost per token of context.
    `draft_ms` holds the cost of a drafter's block or first token; for autoregressive drafters `next_ms` is the cost of
    each further token and `read_ms` of each unread token. A drafter that `draft_ms` does not name is free.
    """

    def __init__(
        self,
        verify_ms: dict[int, float],
        draft_ms: dict[str, float],
        growth: dict[int, float] | None = None,
        next_ms: Mapping[str, float] | None = None,
        read_ms: Mapping[str, float] | None = None,
    ) -> None:
        self.costs = VerifyCosts(verify_ms, growth)
        next_ms, read_ms = next_ms or {}, read_ms or {}
        costs = {name: DraftCost(ms, next_ms.get(name, 0.0), read_ms.get(name, 0.0)) for name, ms in draft_ms.items()}
        self._drafts = defaultdict[str, DraftCost](DraftCost, costs)
        self.calibration = defaultdict[str, Calibration](Calibration)
        self.calibration.update({name: DepthCalibration() for name in next_ms})
        self._answer_tokens = INITIAL_ANSWER_TOKENS
        self._credit_ms = self._needed_ms = 0.0  # time saved up for probes, and cost of the probe considered last
        self._probes = 0
        self._is_probing = False

    def predict_verify_ms(self, width: int) -> float:
        """Return the expected time of a verify batch."""
        return self.costs.predict_ms(width)

    @property
    def draft_ms(self) -> Mapping[str, float]:
        """Expected times of a block, or of the first token, by drafter; a drafter that is missing is free."""
        return {name: cost.first_ms for name, cost in self._drafts.items()}

    def predict_draft_ms(self, drafter: str, tokens: int) -> float:
        """Return the expected time of a draft of `tokens` tokens."""
        return self._drafts[drafter].predict_ms(tokens)

    @property
    def baseline_rate(self) -> float:
        """Tokens per millisecond without drafting."""
        return 1.0 / self.costs.predict_ms(1)

    def choose_prefix(self, draft: Draft) -> tuple[int, float]:
        """Return how many tokens of a draft to verify, and the expected rate without its own cost, which is spent."""
        acceptance = self.calibration[draft.drafter].acceptance
        draft_ms = self.predict_draft_ms(draft.drafter, len(draft))
        baseline = self.baseline_rate
        floor, verify_ms = baseline * MIN_SPEEDUP, self.costs.predict_by_draft_length()
        count, best, rate = 0, 0.0, baseline
        alive, expected, remaining = 1.0, 1.0, len(draft)
        for i, (confidence, cost) in enumerate(zip(draft.confidence, verify_ms, strict=False)):
            alive *= acceptance(confidence)
            expected += alive
            remaining -= 1
            if expected > floor * cost and expected > best * (cost + draft_ms):
                count, best, rate = i + 1, expected / (cost + draft_ms), expected / cost
            bound = expected + alive * remaining  # if all remaining tokens were certain, and free to verify
            if bound <= floor * cost or bound <= best * (cost + draft_ms):
                break
        return count, rate

    def predict_rate(self, drafter: str, limit: int) -> float:
        """Return the best expected tokens per millisecond of a drafter, including the cost of its draft."""
        return self._best_length(drafter, self.calibration[drafter].survival[:limit])[1]

    def choose_length(self, drafter: str, limit: int) -> int:
        """Return how many tokens to request from a drafter: of a block all, because they cost the same."""
        if not self._drafts[drafter].next_ms:
            return limit
        survival = self.calibration[drafter].survival[:limit] or _optimistic_survival(limit)
        return max(self._best_length(drafter, survival)[0], 1)

    def _best_length(self, drafter: str, survival: Sequence[float]) -> tuple[int, float]:
        """Return the draft length with the highest expected tokens per millisecond, and that rate."""
        draft, verify_ms = self._drafts[drafter], self.costs.predict_by_draft_length()
        length, best, expected = 0, 0.0, 1.0
        for i, (alive, ms) in enumerate(zip(survival, verify_ms, strict=False)):
            expected += alive
            cost = ms + draft.predict_ms(i + 1)
            if expected > best * cost:
                length, best = i + 1, expected / cost
        return length, best

    def should_read_prompt(self, drafter: str, unread: int, rate: float, expected: float) -> bool:
        """Return whether decoding at `expected` instead of `rate` saves more than reading `unread` tokens costs."""
        return self._answer_tokens * (1 / rate - 1 / expected) > self._drafts[drafter].predict_reading_ms(unread)

    def start_probe(self, drafter: str, limit: int, rate: float, unread: int = 0) -> bool:
        """Start a draft that only measures the drafter, once its time is saved up and its best case beats `rate`."""
        cost = self._drafts[drafter]
        self._needed_ms = cost.predict_ms(self.choose_length(drafter, limit)) + cost.predict_reading_ms(unread)
        if self._credit_ms < self._needed_ms:
            return False
        if self._best_length(drafter, _optimistic_survival(limit))[1] > rate:
            self._is_probing = True
            return True
        return False

    def record_verify(self, width: int, ms: float) -> None:
        """Learn from a measured step, without the time of its draft."""
        share = INITIAL_PROBE_SHARE if self._probes < INITIAL_PROBES else PROBE_SHARE
        max_credit_ms = max(INITIAL_PROBES * max(self.draft_ms.values(), default=0.0), self._needed_ms)
        self._credit_ms = min(self._credit_ms + share * ms, max_credit_ms)
        self.costs.record(width, ms)

    def record_answer(self, tokens: int) -> None:
        """Learn from the length of an answer."""
        self._answer_tokens += ANSWER_RATE * (tokens - self._answer_tokens)

    def record_draft(self, drafter: str, ms: float, tokens: int = 1) -> None:
        """Learn from a measured draft; a probe is charged its full time, even if that is more than usual."""
        self._drafts[drafter].record(tokens, ms)
        if self._is_probing:
            self._is_probing = False
            self._probes += 1
            self._credit_ms -= ms


def _optimistic_survival(limit: int) -> list[float]:
    return [OPTIMISTIC_ACCEPTANCE ** (i + 1) for i in range(limit)]
