"""Load a pair with a progress bar if it takes long, and print its notice."""

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
    """A loaded pair. Notices go to stderr, the bar only to a terminal."""
    progress = _Bar() if sys.stderr.isatty() else None
    with LoadedPair(replace(options, progress=progress)) as loaded:
        if loaded.notice:
            print(loaded.notice, file=sys.stderr)
        yield loaded


class _Bar:
    """A bar drawn on one line, removed at the end."""

    def __init__(self) -> None:
        self._began, self._drawn = time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        filled = WIDTH * done // max(total, 1)
        if time.monotonic() - self._began < PATIENCE or (filled == self._drawn and done < total):
            return
        self._drawn = filled
        bar = f"loading [{'#' * filled}{'.' * (WIDTH - filled)}] {done / 1e9:.1f} of {total / 1e9:.1f} GB"
        print(f"\r{bar}" if done < total else "\r" + " " * len(bar) + "\r", end="", file=sys.stderr, flush=True)
