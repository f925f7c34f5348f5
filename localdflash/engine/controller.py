"""How much to draft: the choice that maximises expected tokens per millisecond, plain decoding always among them.

Speed = E[tokens] / (V(nodes + 1) + D). V (a verify of so many rows) and D (a draft) are measured at load and on every
step. A drafter's confidence is only a claim; what a claim is worth is counted from the drafts that came before, whether
they were verified or not: what was committed afterwards tells.
"""

from bisect import bisect_left
from collections.abc import Sequence

from localdflash.engine.draft import Draft

BINS = 12
PRIOR_WEIGHT = 6.0  # drafts' worth of trust in a claimed confidence before anything was counted
MEMORY = 0.995  # share of a count that is left after one more observation
LEARNING = 0.05  # weight of a new timing
PROBE_SHARE = 0.01  # of the decoding time may go into drafts that only refresh the statistics
MARGIN = 1.05  # how much better than plain decoding a draft must look


class Calibration:
    """What one drafter's confidence has been worth: acceptance of nodes whose parents were right."""

    def __init__(self) -> None:
        self._right = [PRIOR_WEIGHT * (b + 0.5) / BINS for b in range(BINS)]
        self._judged = [PRIOR_WEIGHT] * BINS
        self.survival: list[float] = []  # share of drafts whose first k nodes were right
        self.drafts = 0

    def acceptance(self, confidence: float) -> float:
        """Estimated acceptance of a node that claims this confidence."""
        b = min(int(confidence * BINS), BINS - 1)
        return self._right[b] / self._judged[b]

    def judge(self, confidence: Sequence[float], right: int) -> None:
        """A chain of nodes turned out to be right up to, not including, node `right`."""
        self.drafts += 1
        for i in range(min(right + 1, len(confidence))):
            b = min(int(confidence[i] * BINS), BINS - 1)
            self._right[b] = self._right[b] * MEMORY + (i < right)
            self._judged[b] = self._judged[b] * MEMORY + 1.0
        weight = max(LEARNING, 1.0 / self.drafts)
        for i in range(len(confidence)):
            if i == len(self.survival):
                self.survival.append(float(i < right))
            else:
                self.survival[i] += weight * ((i < right) - self.survival[i])


class Controller:
    """Costs and calibrations of one pair on one machine. Times are milliseconds."""

    def __init__(self, verify_ms: dict[int, float], draft_ms: dict[str, float]) -> None:
        self._widths = sorted(verify_ms)
        self._verify = [verify_ms[w] for w in self._widths]
        self.draft_ms = dict(draft_ms)
        self.calibration = {name: Calibration() for name in draft_ms}
        self._credit = 0.0

    def verify_ms(self, rows: int) -> float:
        """Expected time of a verify, between the measured widths by straight lines."""
        widths, times = self._widths, self._verify
        i = bisect_left(widths, rows)
        if i < len(widths) and widths[i] == rows:
            return times[i]
        i = min(max(i, 1), len(widths) - 1)
        slope = (times[i] - times[i - 1]) / (widths[i] - widths[i - 1])
        return times[i] + slope * (rows - widths[i])

    def verify_costs(self) -> dict[int, float]:
        """The measured widths and their times."""
        return dict(zip(self._widths, self._verify, strict=True))

    @property
    def plain_rate(self) -> float:
        """Tokens per millisecond of plain decoding."""
        return 1.0 / self._verify[0]

    def best_prefix(self, draft: Draft) -> tuple[int, float]:
        """Nodes of a chain worth verifying, and the tokens per millisecond that they promise (drafting is paid for)."""
        calibration = self.calibration[draft.drafter]
        nodes, best = 0, self.plain_rate * MARGIN
        alive, expected = 1.0, 1.0
        for i, confidence in enumerate(draft.confidence):
            alive *= calibration.acceptance(confidence)
            expected += alive
            rate = expected / self.verify_ms(i + 2)
            if rate > best:
                nodes, best = i + 1, rate
        return nodes, best if nodes else self.plain_rate

    def promise(self, drafter: str, limit: int) -> float:
        """Best tokens per millisecond to expect of a drafter that has not been asked yet, its own cost included."""
        survival = self.calibration[drafter].survival[:limit]
        expected, best = 1.0, 0.0
        for i, alive in enumerate(survival):
            expected += alive
            best = max(best, expected / (self.verify_ms(i + 2) + self.draft_ms[drafter]))
        return best

    def ceiling(self, drafter: str, nodes: int) -> float:
        """Tokens per millisecond if every node were right: a drafter below plain decoding even so can never pay."""
        cost = self.draft_ms[drafter]
        return max((n + 1) / (self.verify_ms(n + 1) + cost) for n in range(1, nodes + 1))

    def may_probe(self, drafter: str) -> bool:
        """Whether enough time was spent otherwise to afford a draft that only refreshes the statistics."""
        if self._credit < self.draft_ms[drafter]:
            return False
        self._credit -= self.draft_ms[drafter]
        return True

    def learn_verify(self, rows: int, ms: float) -> None:
        """Count a measured verify; outliers (a busy machine) are capped so that one of them changes little."""
        self._credit = min(self._credit + PROBE_SHARE * ms, 1e3)
        i = bisect_left(self._widths, rows)
        if i < len(self._widths) and self._widths[i] == rows:
            self._verify[i] += LEARNING * (min(ms, 3 * self._verify[i]) - self._verify[i])

    def learn_draft(self, drafter: str, ms: float) -> None:
        """Count a measured draft."""
        old = self.draft_ms[drafter]
        self.draft_ms[drafter] = old + LEARNING * (min(ms, 3 * old + 0.01) - old)
