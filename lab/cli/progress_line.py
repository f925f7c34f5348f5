"""Progress of a long job: one line that is overwritten on a terminal, else a line every 9 s."""

import sys
import time

LINE_SECONDS = 9.0  # between two lines if stderr is not a terminal


class ProgressLine:
    """Progress reporter that writes to stderr."""

    def __init__(self) -> None:
        self._shown, self._open = -LINE_SECONDS, False

    def move(self, share: float, text: str) -> None:
        """Show a bar for a share from 0 to 1, with a text; off a terminal, only every LINE_SECONDS."""
        terminal = sys.stderr.isatty()
        now = time.monotonic()
        if not terminal and now - self._shown < LINE_SECONDS:
            return
        self._shown, self._open = now, terminal
        bar = "#" * round(min(max(share, 0.0), 1.0) * 20)
        print(f"[{bar:20}] {text}", file=sys.stderr, flush=True, end="\x1b[K\r" if terminal else "\n")

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._open:
            print("\x1b[K", end="", file=sys.stderr, flush=True)
            self._open = False
