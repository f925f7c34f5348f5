"""An observer of a benchmark for tests."""


class Watched:
    """Records the plan and the steps; raises KeyboardInterrupt after the step `stop`."""

    def __init__(self, stop: str = "") -> None:
        self.planned, self.line, self.parts, self._stop = 0.0, "", list[tuple[float, str]](), stop

    def plan(self, seconds: float, line: str) -> None:
        self.planned, self.line = seconds, line

    def done(self, seconds: float, what: str) -> None:
        self.parts.append((seconds, what))
        if self._stop and what == self._stop:
            raise KeyboardInterrupt
