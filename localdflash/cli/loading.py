"""Load a pair with a progress bar if it takes long, and print its notice."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options

PATIENCE = 0.5  # seconds before a bar appears
WIDTH = 30


@contextmanager
def opened(options: Options) -> Iterator[LoadedPair]:
    """A loaded pair. Notices go to stderr."""
    with LoadedPair(shown(options)) as loaded:
        if loaded.notice:
            print(loaded.notice, file=sys.stderr)
        yield loaded


def shown(options: Options) -> Options:
    """The same with a bar on stderr, if that is a terminal."""
    bar = _Bar() if sys.stderr.isatty() else None
    return replace(options, progress=bar, compiling=bar and bar.compiling)


class _Bar:
    """A bar drawn on one line, removed at the end."""

    def __init__(self) -> None:
        self._began, self._drawn = time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        if (filled := _filled(done, total)) != self._drawn or done >= total:
            self._drawn = filled
            self._draw("loading", done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def compiling(self, done: int, total: int) -> None:
        """Kernels are compiled for this GPU, once for each model."""
        self._draw("compiling", done, total, f"{done} of {total}")

    def _draw(self, doing: str, done: int, total: int, said: str) -> None:
        if time.monotonic() - self._began < PATIENCE:
            return
        filled = _filled(done, total)
        bar = f"{doing} [{'#' * filled}{'.' * (WIDTH - filled)}] {said}"
        print(f"\r{bar}" if done < total else "\r" + " " * len(bar) + "\r", end="", file=sys.stderr, flush=True)


def _filled(done: int, total: int) -> int:
    return WIDTH * done // max(total, 1)
