"""Chooses how much to draft: what maximises expected tokens per millisecond, plain decoding always among the choices.

Speed = E[tokens] / (V(nodes + 1) + D). V (a verify of so many rows) and D (a draft) are measured at load and on every
step. A drafter's confidence is only a claim; what it is worth is learned from earlier drafts, verified or not, by
comparing them with what was committed afterwards.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from localdflash.engine.costs import DraftCost, VerifyCosts
from localdflash.engine.draft import Draft

BINS = 12
PRIOR_WEIGHT = 6.0  # drafts' worth of trust in a claimed confidence before anything was counted
MEMORY = 0.995  # share of a count that is left after one more observation
SURPRISE = 0.1  # weight of a new draft's outcome
DEPTH_MEMORY, SHALLOWER = 0.95, 2.0  # the same for a depth, and the drafts' worth of trust in what the one before says
TRIAL = 12  # drafts that count as the first ones, and the most that may be saved up
TRIAL_SHARE, PROBE_SHARE = 0.05, 0.01  # of the decoding time may go into drafts that only tell what a drafter is worth
ANSWER, RECENT = 64.0, 0.2  # tokens of an answer before any was seen, and the weight of a new one
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

    def record_outcome(self, confidence: Sequence[float], right: int) -> None:
        """Count a draft that was right up to, not including, node `right`."""
        self.drafts += 1
        for i in range(min(right + 1, len(confidence))):
            b = _bin(confidence[i])
            self._right[b] = self._right[b] * MEMORY + (i < right)
            self._judged[b] = self._judged[b] * MEMORY + 1.0
        self._survived(confidence, right)

    def _survived(self, confidence: Sequence[float], right: int) -> None:
        weight = max(SURPRISE, 1.0 / (self.drafts + 1))  # + 1: one lucky draft is not believed at once
        counted = min(len(confidence), SLOTS)
        self.survival += [0.0] * (counted - len(self.survival))
        for i in range(counted):
            self.survival[i] += weight * ((i < right) - self.survival[i])


class DepthCalibration(Calibration):
    """That of a drafter which is asked for no more nodes than pay.

    How often a node of a depth was right where those before it were is counted by itself, and forgotten: a depth that
    was not drafted lately is expected to do as the one before it, so it is tried again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._right_at, self._judged_at = [0.0] * SLOTS, [0.0] * SLOTS

    def _survived(self, confidence: Sequence[float], right: int) -> None:
        chance, alive = 0.0, 1.0
        weight = 1.0 / self.drafts  # of the chance 0 before anything was counted: one lucky draft is not believed
        self.survival = []
        for i in range(SLOTS):
            judged = i < min(right + 1, len(confidence))
            self._judged_at[i] = self._judged_at[i] * DEPTH_MEMORY + judged
            self._right_at[i] = self._right_at[i] * DEPTH_MEMORY + (judged and i < right)
            chance = (self._right_at[i] + weight * chance) / (self._judged_at[i] + weight)
            alive *= chance
            self.survival.append(alive)
            weight = SHALLOWER


def _bin(confidence: float) -> int:
    """The bin of a claimed confidence; one that is not a number (a damaged drafter) counts as 0."""
    return min(int(min(confidence, 1.0) * BINS), BINS - 1) if confidence > 0.0 else 0


class Controller:
    """Costs and calibrations of one pair on one machine. Times are milliseconds.

    `verify_ms` holds some widths (1 among them); others are interpolated linearly until they are measured. `growth` has
    what each of them costs more for a token of context. A drafter that `draft_ms` does not name is free; for those that
    compute their nodes one by one it has the first node, and `node_ms` what every further one costs; `read_ms` what it
    costs them to read a token.
    """

    def __init__(
        self,
        verify_ms: dict[int, float],
        draft_ms: dict[str, float],
        growth: dict[int, float] | None = None,
        node_ms: Mapping[str, float] | None = None,
        read_ms: Mapping[str, float] | None = None,
    ) -> None:
        self.costs = VerifyCosts(verify_ms, growth)
        by_node, read = node_ms or {}, read_ms or {}
        costs = {name: DraftCost(ms, by_node.get(name, 0.0), read.get(name, 0.0)) for name, ms in draft_ms.items()}
        self._drafts = defaultdict[str, DraftCost](DraftCost, costs)
        self.calibration = defaultdict[str, Calibration](Calibration)
        self.calibration.update({name: DepthCalibration() for name in by_node})
        self._answer = ANSWER
        self._credit = self._needed = 0.0
        self._probes = 0
        self._probing = False

    def set_context_length(self, length: int) -> None:
        """Expect the next verifies after so many tokens."""
        self.costs.set_context_length(length)

    def predict_verify_ms(self, rows: int) -> float:
        """Expected time of a verify of so many rows."""
        return self.costs.predict_ms(rows)

    @property
    def draft_ms(self) -> Mapping[str, float]:
        """Expected times of the drafters' drafts, or of their first nodes; those without one are free."""
        return {name: cost.first for name, cost in self._drafts.items()}

    def predict_draft_ms(self, drafter: str, nodes: int) -> float:
        """Expected time of a draft of so many nodes."""
        return self._drafts[drafter].predict_ms(nodes)

    @property
    def baseline_rate(self) -> float:
        """Tokens per millisecond of plain decoding."""
        return 1.0 / self.costs.predict_ms(1)

    def choose_prefix(self, draft: Draft) -> tuple[int, float]:
        """How many nodes of a draft to verify, and the tokens per millisecond expected from that.

        The draft is already paid for, so it need not earn its own cost to be verified. But every round pays for a
        draft, which favours longer prefixes: so the length is chosen with that cost, and the returned rate leaves it
        out.
        """
        acceptance, drafting = (
            self.calibration[draft.drafter].acceptance,
            self.predict_draft_ms(draft.drafter, len(draft)),
        )
        plain, pace = self.baseline_rate, self.costs.pace
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

    def predict_rate(self, drafter: str, limit: int) -> float:
        """The best tokens per millisecond to expect of a drafter before it is asked, its own cost included."""
        return self._best(drafter, self.calibration[drafter].survival[:limit])[1]

    def choose_length(self, drafter: str, limit: int) -> int:
        """How many nodes to ask a drafter for, at most `limit`: of a block all, for they cost the same."""
        if not self._drafts[drafter].each:
            return limit
        survival = self.calibration[drafter].survival or [HOPE ** (i + 1) for i in range(limit)]
        return max(self._best(drafter, survival[:limit])[0], 1)

    def _best(self, drafter: str, survival: Sequence[float]) -> tuple[int, float]:
        """How many nodes bring most, and the tokens per millisecond that they bring."""
        draft, pace = self._drafts[drafter], self.costs.pace
        nodes, best, expected = 0, 0.0, 1.0
        for i, (alive, shape) in enumerate(zip(survival, self.costs.shape[2:], strict=False)):
            expected += alive
            cost = shape * pace + draft.predict_ms(i + 1)
            if expected > best * cost:
                nodes, best = i + 1, expected / cost
        return nodes, best

    def should_read_prompt(self, drafter: str, waiting: int, rate: float, promised: float) -> bool:
        """Return whether drafting above `rate` repays, over an answer, reading the drafter's pending tokens."""
        return self._answer * (1 / rate - 1 / promised) > self._drafts[drafter].predict_reading_ms(waiting)

    def should_probe(self, drafter: str, limit: int, rate: float, waiting: int = 0) -> bool:
        """Return whether to ask a drafter only to learn what it is worth.

        Enough time must have been spent on other things, for what waits to be read, too, and the drafter must be able
        to beat `rate` if it were as good as one may hope.
        """
        self._needed = self.predict_draft_ms(drafter, self.choose_length(drafter, limit)) + self._drafts[
            drafter
        ].predict_reading_ms(waiting)
        if self._credit < self._needed:
            return False
        if self._best(drafter, [HOPE ** (i + 1) for i in range(limit)])[1] > rate:
            self._probing = True
            return True
        return False

    def record_outcome(self, drafter: str, confidence: Sequence[float], right: int) -> None:
        """Count how a drafter's draft did: it was right up to, not including, node `right`."""
        self.calibration[drafter].record_outcome(confidence, right)

    def record_verify(self, rows: int, ms: float) -> None:
        """Count the measured time of a step without the time of its drafter."""
        share = TRIAL_SHARE if self._probes < TRIAL else PROBE_SHARE
        most = max(TRIAL * max(self.draft_ms.values(), default=0.0), self._needed)
        self._credit = min(self._credit + share * ms, most)
        self.costs.learn(rows, ms)

    def record_answer(self, tokens: int) -> None:
        """Count an answer of so many tokens."""
        self._answer += RECENT * (tokens - self._answer)

    def record_draft(self, drafter: str, ms: float, nodes: int = 1) -> None:
        """Count a measured draft; a probe is charged what it took, even if that is more than usual."""
        self._drafts[drafter].learn(nodes, ms)
        if self._probing:
            self._probing = False
            self._probes += 1
            self._credit -= ms
