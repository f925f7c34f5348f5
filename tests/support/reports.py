"""Reporter of long jobs that records everything."""

from localdflash.models.registry.hub import Progress


class RecordedReport:
    """`Reporter` of a training, and `DownloadReport`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shares: list[float] = []

    def say(self, line: str) -> None:
        """Record a line."""
        self.lines.append(line)

    def move(self, share: float, text: str) -> None:
        """Record a share."""
        self.shares.append(share)

    def progress(self, doing: str, name: str) -> Progress:
        """Record the name of a started step."""
        self.lines.append(f"{doing} {name}")
        return lambda done, total: None
