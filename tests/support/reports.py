"""A report of downloads that keeps what it is told."""

from localdflash.models.registry.hub import Progress


class Told:
    """See `DownloadReport`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)

    def progress(self, doing: str, name: str) -> Progress:
        """Keep what begins; the meter shows nothing."""
        self.lines.append(f"{doing} {name}")
        return lambda done, total: None
