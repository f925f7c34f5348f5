"""Chooses how much to draft: what maximises expected tokens per millisecond, plain decoding always among the choices.

Speed = E[tokens] / (V(nodes + 1) + D). V (a verify of so many rows) and D (a draft) are measured at load and on every
step. A drafter's confidence is only a claim; what it is worth is learned from earlier drafts, verified or not, by
comparing them with what was committed afterwards.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from localdflash.engine.costs import VerifyCosts
from localdflash.engine.draft import Draft
from localdflash.engine.worth import Worth

BINS = 12
PRIOR_WEIGHT = 6.0  # drafts' worth of trust in a claimed confidence before anything was counted
MEMORY = 0.995  # share of a count that is left after one more observation
SURPRISE = 0.1  # weight of a new draft's outcome
SLOWER, FASTER = 0.05, 0.3  # weight of a draft's new timing: what disturbs a measurement only ever makes it longer
TRIAL = 12  # drafts that count as the first ones, and the most that may be saved up
TRIAL_SHARE, PROBE_SHARE = 0.05, 0.01  # of the decoding time may go into drafts that only tell what a drafter is worth
HOPE = 0.95  # acceptance of each node that a drafter is given credit for before it was tried
MARGIN = 1.05  # how much better than plain decoding a draft must look
SLOTS = 32  # nodes whose survival is counted: no verify is wider


class Calibration:
    """What one drafter's confidence has been worth: how often nodes were accepted whose parents were right."""

    def __init__(self) -> None:
        self._right = [PRIOR_WEIGHT * (b + 0.5) / BINS for b in range(BINS)]
        self._judged = [PRIOR_WEIGHT] * BINS
        self.survival: list[float] = []  # share of drafts whose first k nodes were right
        self.drafts = 0

    def acceptance(self, confidence: float) -> float:
        """Estimated acceptance of a node that claims this confidence."""
        b = _bin(confidence)
        return self._right[b] / self._judged[b]

    def judge(self, confidence: Sequence[float], right: int) -> None:
        """Count a draft that was right up to, not including, node `right`."""
        self.drafts += 1
        for i in range(min(right + 1, len(confidence))):
            b = _bin(confidence[i])
            self._right[b] = self._right[b] * MEMORY + (i < right)
            self._judged[b] = self._judged[b] * MEMORY + 1.0
        weight = max(SURPRISE, 1.0 / (self.drafts + 1))  # + 1: one lucky draft is not believed at once
        counted = min(len(confidence), SLOTS)
        self.survival += [0.0] * (counted - len(self.survival))
        for i in range(counted):
            self.survival[i] += weight * ((i < right) - self.survival[i])


def _bin(confidence: float) -> int:
    """The bin of a claimed confidence; one that is not a number (a damaged drafter) counts as 0."""
    return min(int(min(confidence, 1.0) * BINS), BINS - 1) if confidence > 0.0 else 0


class Controller:
    """Costs and calibrations of one pair on one machine. Times are milliseconds.

    `verify_ms` holds some widths (1 among them); others are interpolated linearly until they are measured. `growth` has
    what each of them costs more for a token of context. A drafter that `draft_ms` does not name is free.
    """

    def __init__(
        self, verify_ms: dict[int, float], draft_ms: dict[str, float], growth: dict[int, float] | None = None
    ) -> None:
        self.costs = VerifyCosts(verify_ms, growth)
        self._worth = Worth()
        self._draft_ms = defaultdict(float, draft_ms)
        self.calibration = defaultdict[str, Calibration](Calibration)
        self._credit = 0.0
        self._probes = 0
        self._probing = False

    def follow(self, length: int) -> None:
        """Expect the next verifies after so many tokens."""
        self.costs.follow(length)

    def verify_ms(self, rows: int) -> float:
        """Expected time of a verify of so many rows."""
        return self.costs.ms(rows)

    @property
    def draft_ms(self) -> Mapping[str, float]:
        """Expected times of the drafters' drafts; those without one are free."""
        return self._draft_ms

    @property
    def plain_rate(self) -> float:
        """Tokens per millisecond of plain decoding."""
        return 1.0 / self.costs.ms(1)

    def best_prefix(self, draft: Draft) -> tuple[int, float]:
        """How many nodes of a draft to verify, and the tokens per millisecond expected from that.

        The draft is already paid for, so it need not earn its own cost to be verified. But every round pays for a
        draft, which favours longer prefixes: so the length is chosen with that cost, and the returned rate leaves it
        out.
        """
        acceptance, drafting = self.calibration[draft.drafter].acceptance, self._draft_ms[draft.drafter]
        plain, pace = self.plain_rate, self.costs.pace
        floor = plain * MARGIN
        nodes, best, rate = 0, 0.0, plain
        alive, expected, left = 1.0, 1.0, len(draft)
        for i, (confidence, shape) in enumerate(zip(draft.confidence, self.costs.shape[2:], strict=False)):
            alive *= acceptance(confidence)
            expected += alive
            left -= 1
            cost = shape * pace
            if expected > floor * cost and expected > best * (cost + drafting):
                nodes, best, rate = i + 1, expected / (cost + drafting), expected / cost
            hoped = expected + alive * left  # if all others were sure, and their rows free
            if hoped <= floor * cost or hoped <= best * (cost + drafting):
                break
        return nodes, rate

    def looks(self) -> bool:
        """Whether the next step asks the drafters at all."""
        return self._worth.looks(self.costs.ms(1))

    def promise(self, drafter: str, limit: int) -> float:
        """The best tokens per millisecond to expect of a drafter before it is asked, its own cost included."""
        drafting, pace = self._draft_ms[drafter], self.costs.pace
        expected, best = 1.0, 0.0
        for alive, shape in zip(self.calibration[drafter].survival[:limit], self.costs.shape[2:], strict=False):
            expected += alive
            cost = shape * pace
            if expected > best * (cost + drafting):
                best = expected / (cost + drafting)
        return best

    def may_probe(self, drafter: str, limit: int, rate: float) -> bool:
        """Whether to ask a drafter only to learn what it is worth.

        Enough time must have been spent on other things, and the drafter must be able to beat `rate` if it were as good
        as one may hope.
        """
        drafting = self._draft_ms[drafter]
        if self._credit < drafting:
            return False
        alive, expected = 1.0, 1.0
        for shape in self.costs.shape[2 : limit + 2]:
            alive *= HOPE
            expected += alive
            if expected > rate * (shape * self.costs.pace + drafting):
                self._probing = True
                return True
        return False

    def judge(self, drafter: str, confidence: Sequence[float], right: int) -> None:
        """Count how a drafter's draft did: it was right up to, not including, node `right`."""
        self.calibration[drafter].judge(confidence, right)

    def learn_verify(self, rows: int, ms: float) -> None:
        """Count the measured time of a step without the time of its drafter."""
        share = TRIAL_SHARE if self._probes < TRIAL else PROBE_SHARE
        self._credit = min(self._credit + share * ms, TRIAL * max(self._draft_ms.values(), default=0.0))
        self.costs.learn(rows, ms)

    def learn_looking(self, tokens: int, ms: float, looking_ms: float) -> None:
        """Count a step that asked the drafters: the tokens it committed, its time, and the part spent on asking."""
        self._worth.looked(tokens, ms, looking_ms)

    def learn_rest(self, ms: float) -> None:
        """Count the time of a step that did not ask the drafters."""
        self._worth.rested(ms)

    def learn_draft(self, drafter: str, ms: float) -> None:
        """Count a measured draft; a probe is charged what it took, even if that is more than usual."""
        self._draft_ms[drafter] = _learned(self._draft_ms[drafter], ms)
        if self._probing:
            self._probing = False
            self._probes += 1
            self._credit -= ms


def _learned(old: float, ms: float) -> float:
    """A learned time after one more measurement; outliers (a busy machine) are capped, so one changes little."""
    weight = FASTER if ms < old else SLOWER
    return old + weight * (min(ms, 3 * old + 0.01) - old)
