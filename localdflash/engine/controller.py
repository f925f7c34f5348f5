"""How much to draft: the choice that maximises expected tokens per millisecond, plain decoding always among them.

Speed = E[tokens] / (V(nodes + 1) + D). V (a verify of so many rows) and D (a draft) are measured at load and on every
step. A drafter's confidence is only a claim; what a claim is worth is counted from the drafts that came before, whether
they were verified or not: what was committed afterwards tells.
"""

from collections import defaultdict
from collections.abc import Sequence

from localdflash.engine.costs import VerifyCosts
from localdflash.engine.draft import Draft
from localdflash.engine.worth import Worth

BINS = 12
PRIOR_WEIGHT = 6.0  # drafts' worth of trust in a claimed confidence before anything was counted
MEMORY = 0.995  # share of a count that is left after one more observation
SURPRISE = 0.1  # weight of a new draft's outcome
SLOWER, FASTER = 0.05, 0.3  # weight of a draft's new timing: what disturbs a measurement only ever makes it longer
TRIAL = 12  # drafts that count as the first ones, and the most that may be saved up
TRIAL_SHARE, PROBE_SHARE = 0.1, 0.01  # of the decoding time may go into drafts that only tell what a drafter is worth
HOPE = 0.95  # acceptance of each node that a drafter is given credit for before it was tried
MARGIN = 1.05  # how much better than plain decoding a draft must look
SLOTS = 32  # nodes whose survival is counted: no verify is wider


class Calibration:
    """What one drafter's confidence has been worth: acceptance of nodes whose parents were right."""

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
        """A chain of nodes turned out to be right up to, not including, node `right`."""
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
    """Where a claim is counted; a claim that is no number (a damaged drafter) counts as none."""
    return min(int(min(confidence, 1.0) * BINS), BINS - 1) if confidence > 0.0 else 0


class Controller:
    """Costs and calibrations of one pair on one machine. Times are milliseconds.

    `verify_ms` holds some widths (1 among them), the others are straight lines between them until they are measured.
    A drafter that `draft_ms` does not name is free.
    """

    def __init__(self, verify_ms: dict[int, float], draft_ms: dict[str, float]) -> None:
        self._costs = VerifyCosts(verify_ms)
        self._worth = Worth()
        self.draft_ms = defaultdict(float, draft_ms)
        self.calibration = defaultdict[str, Calibration](Calibration)
        self._credit = 0.0
        self._probes = 0
        self._probing = False

    def verify_ms(self, rows: int) -> float:
        """Expected time of a verify."""
        return self._costs.ms(rows)

    @property
    def plain_rate(self) -> float:
        """Tokens per millisecond of plain decoding."""
        return 1.0 / self._costs.ms(1)

    def best_prefix(self, draft: Draft) -> tuple[int, float]:
        """Nodes of a chain worth verifying, and the tokens per millisecond that they promise from here on.

        The draft is paid for, so it need not earn its own cost to be verified; but every round pays for one, which
        makes longer prefixes better: the length is chosen with the cost, the worth is given without it.
        """
        acceptance, drafting = self.calibration[draft.drafter].acceptance, self.draft_ms[draft.drafter]
        plain, pace = self.plain_rate, self._costs.pace
        floor = plain * MARGIN
        nodes, best, rate = 0, 0.0, plain
        alive, expected, left = 1.0, 1.0, len(draft)
        for i, (confidence, shape) in enumerate(zip(draft.confidence, self._costs.shape[2:], strict=False)):
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
        """Whether the next step looks for drafts at all."""
        return self._worth.looks(self._costs.ms(1))

    def promise(self, drafter: str, limit: int) -> float:
        """Best tokens per millisecond to expect of a drafter that has not been asked yet, its own cost included."""
        drafting, pace = self.draft_ms[drafter], self._costs.pace
        expected, best = 1.0, 0.0
        for alive, shape in zip(self.calibration[drafter].survival[:limit], self._costs.shape[2:], strict=False):
            expected += alive
            cost = shape * pace
            if expected > best * (cost + drafting):
                best = expected / (cost + drafting)
        return best

    def may_probe(self, drafter: str, limit: int, rate: float) -> bool:
        """Whether a draft that only tells what the drafter is worth is due.

        Enough time must have been spent otherwise, and the drafter must beat `rate` if it were as good as one hopes.
        """
        drafting = self.draft_ms[drafter]
        if self._credit < drafting:
            return False
        alive, expected = 1.0, 1.0
        for shape in self._costs.shape[2 : limit + 2]:
            alive *= HOPE
            expected += alive
            if expected > rate * (shape * self._costs.pace + drafting):
                self._probing = True
                return True
        return False

    def learn_verify(self, rows: int, ms: float) -> None:
        """Count a measured step, what its drafter took apart."""
        share = TRIAL_SHARE if self._probes < TRIAL else PROBE_SHARE
        self._credit = min(self._credit + share * ms, TRIAL * max(self.draft_ms.values(), default=0.0))
        self._costs.learn(rows, ms)

    def learn_looking(self, tokens: int, ms: float, looking_ms: float) -> None:
        """A step that looked for drafts committed so many tokens; looking took a part of its time."""
        self._worth.looked(tokens, ms, looking_ms)

    def learn_rest(self, ms: float) -> None:
        """A step that did not look took so long."""
        self._worth.rested(ms)

    def learn_draft(self, drafter: str, ms: float) -> None:
        """Count a measured draft; a probe is paid for with what it took, be it more than drafts usually take."""
        self.draft_ms[drafter] = _learned(self.draft_ms[drafter], ms)
        if self._probing:
            self._probing = False
            self._probes += 1
            self._credit -= ms


def _learned(old: float, ms: float) -> float:
    """A time after one more measurement; outliers (a busy machine) are capped so that one of them changes little."""
    weight = FASTER if ms < old else SLOWER
    return old + weight * (min(ms, 3 * old + 0.01) - old)
