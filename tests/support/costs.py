"""Costs that are written down: whether a test drafts does not depend on what this machine is fast at."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localdflash.engine.controller import Controller

FLAT = {1: 1.0, 32: 1.0}  # milliseconds of a verify by its rows: drafted tokens cost nothing


class Untimed(Controller):
    """Learns what drafts are worth, and nothing from the clock."""

    def learn_verify(self, rows: int, ms: float) -> None:
        """Costs stay as they were given."""

    def learn_looking(self, tokens: int, ms: float, looking_ms: float) -> None:
        """Looking costs nothing."""

    def learn_rest(self, ms: float) -> None:
        """Nor is resting timed."""

    def learn_draft(self, drafter: str, ms: float) -> None:
        """Drafts stay free."""


@contextmanager
def drafting_pays() -> Iterator[None]:
    """Pairs that this process loads meanwhile verify any number of rows in the same time, and draft for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.engine.calibrate.Controller", _calibrated)
        yield


def _calibrated(_measured: dict[int, float], draft_ms: dict[str, float]) -> Controller:
    return Untimed(FLAT, dict.fromkeys(draft_ms, 0.0))
