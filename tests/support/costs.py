"""Costs that are written down: whether a test drafts does not depend on what this machine is fast at."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localdflash.engine.controller import Controller

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


@contextmanager
def drafting_pays() -> Iterator[None]:
    """The pairs that this process loads meanwhile draft wherever a draft is likely to be right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.engine.calibrate.Controller", _on_paper)
        yield


def _on_paper(_measured: dict[int, float], draft_ms: dict[str, float]) -> Controller:
    return OnPaper(VERIFY_MS, {name: DRAFT_MS if ms else 0.0 for name, ms in draft_ms.items()})
