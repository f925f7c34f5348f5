"""What a long job told."""


class Said:
    """A `Reporter` that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shares: list[float] = []

    def say(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)

    def move(self, share: float, text: str) -> None:
        """Keep a share."""
        self.shares.append(share)
