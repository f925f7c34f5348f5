"""Loading a pair with something to look at: a progress bar where it takes long, and the notice of a fallback."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from localdflash.backend.options import Options
from localdflash.loading.load import LoadedPair

PATIENCE = 0.5  # seconds before a bar appears
WIDTH = 30


@contextmanager
def opened(options: Options) -> Iterator[LoadedPair]:
    """A loaded pair; what is to be said goes to stderr, a bar only to a terminal."""
    progress = _Bar() if sys.stderr.isatty() else None
    with LoadedPair(replace(options, progress=progress)) as loaded:
        if loaded.notice:
            print(loaded.notice, file=sys.stderr)
        yield loaded


class _Bar:
    """One line that is drawn over itself and goes away at the end."""

    def __init__(self) -> None:
        self._began, self._drawn = time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        filled = WIDTH * done // max(total, 1)
        if time.monotonic() - self._began < PATIENCE or (filled == self._drawn and done < total):
            return
        self._drawn = filled
        bar = f"loading [{'#' * filled}{'.' * (WIDTH - filled)}] {done / 1e9:.1f} of {total / 1e9:.1f} GB"
        print(f"\r{bar}" if done < total else "\r" + " " * len(bar) + "\r", end="", file=sys.stderr, flush=True)
