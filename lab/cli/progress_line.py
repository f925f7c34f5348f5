"""Progress of a long job on stderr: one overwritten line on a terminal, else a new line at most every 9 s."""

import sys
import time

MIN_LINE_SECONDS = 9.0  # between two lines if stderr is not a terminal


class ProgressLine:
    """Progress reporter on stderr; a `Reporter` of training runs."""

    def __init__(self) -> None:
        self._shown_at, self._is_open = -MIN_LINE_SECONDS, False

    def move(self, share: float, text: str) -> None:
        """Show a bar for a share from 0 to 1, with a text; off a terminal, only every MIN_LINE_SECONDS."""
        terminal = sys.stderr.isatty()
        now = time.monotonic()
        if not terminal and now - self._shown_at < MIN_LINE_SECONDS:
            return
        self._shown_at, self._is_open = now, terminal
        bar = "#" * round(min(max(share, 0.0), 1.0) * 20)
        print(f"[{bar:20}] {text}", file=sys.stderr, flush=True, end="\x1b[K\r" if terminal else "\n")

    def say(self, line: str) -> None:
        """Write a permanent line above the progress line."""
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the progress line from the terminal."""
        if self._is_open:
            print("\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_open = False
