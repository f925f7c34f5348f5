"""Whom a long job tells how far it is."""

from typing import Protocol


class Reporter(Protocol):
    """Takes lines that stay, and a share of the work that is done."""

    def say(self, line: str) -> None:
        """Take a line that stays."""

    def move(self, share: float, text: str) -> None:
        """Take how much is done, 0 to 1, with what there is to say of it."""
