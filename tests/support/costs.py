"""Costs that are written down: whether a test drafts does not depend on what this machine is fast at."""

from collections.abc import Sequence

from localdflash.engine.controller import Controller
from localdflash.engine.pair import Drafter, Target

VERIFY_MS = {1: 1.0, 8: 1.5, 32: 3.0}  # by rows
DRAFT_MS = 0.3


class OnPaper(Controller):
    """Learns what drafts are worth; a verify and a draft always take what was said."""

    def learn_verify(self, rows: int, ms: float) -> None:
        """Whatever it took."""
        super().learn_verify(rows, self.verify_ms(rows))

    def learn_draft(self, drafter: str, ms: float) -> None:
        """Whatever it took."""
        super().learn_draft(drafter, self.draft_ms[drafter])

    def learn_looking(self, tokens: int, ms: float, looking_ms: float) -> None:
        """It costs nothing."""

    def learn_rest(self, ms: float) -> None:
        """Every step looks."""


def drafting_pays(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """`Options.costs` with which a pair drafts wherever a draft is likely to be right."""
    return OnPaper(VERIFY_MS, {drafter.name: DRAFT_MS if drafter.reads_taps else 0.0 for drafter in drafters})
