"""Fixed costs, so that drafting in a test does not depend on this machine's speed."""

from collections.abc import Sequence

from localdflash.engine.controller import Controller
from localdflash.engine.pair import Drafter, Target

VERIFY_MS = {1: 1.0, 8: 1.5, 32: 3.0}  # by batch width
DRAFT_MS = 0.3


class FixedCosts(Controller):
    """Controller that learns acceptance; verify batches and drafts have fixed costs."""

    def record_verify(self, rows: int, ms: float) -> None:
        """Record the verify batch at its fixed cost."""
        super().record_verify(rows, self.costs.predict_ms(rows))

    def record_draft(self, drafter: str, ms: float) -> None:
        """Record the draft at its fixed cost."""
        super().record_draft(drafter, self.draft_ms[drafter])


def drafting_pays(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """Return a controller with which a pair drafts whenever acceptance is likely."""
    costs = {drafter.name: DRAFT_MS if drafter.is_model else 0.0 for drafter in drafters}
    return FixedCosts(VERIFY_MS, costs)
