"""A process of its own for what may end the process: a program of ours, that tells how far it is, within a time.

The child tells lines of JSON: `done` and `compiled` are progress, one with `kind` is its last. It ends with its parent.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from localdflash.base.system.process import apart
from localdflash.models.load_options import Options

LONGEST = 4096  # bytes of the child's last words
# Fields of the options that no other process can have, or that are no reason there.
NOT_TOLD = frozenset({"progress", "compiling", "costs", "roomy"})
Told = Mapping[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a child ended: with its last line, or without one by its code, at its limit or before; `words` it wrote."""

    told: Told | None
    code: int
    expired: bool
    words: str


def run(program: str, options: Options, limit: float, hear: Callable[[Told], None], renewed: bool = False) -> Ended:
    """Run a Python program with these options for at most `limit` seconds, or silent for so long if every line renews
    that; OSError if there is no process for it.

    Progress goes to that of the options, every other line to `hear`.
    """
    told = {name: value for name, value in vars(options).items() if name not in NOT_TOLD}
    command = [sys.executable, "-P", "-c", program, json.dumps(told)]
    with tempfile.TemporaryFile() as words:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, **apart()) as child:
            watchdog = _Watchdog(child, limit)
            try:
                outcome = _outcome(_heard(child.stdout, watchdog.renew) if renewed else child.stdout, options, hear)
                child.wait()
            finally:
                watchdog.leave()
                child.kill()
        return Ended(outcome, child.returncode, watchdog.has_bitten, _last_words(words))


def begin() -> tuple[Options, Callable[..., None]]:
    """The child's side: its options, and how it tells a line. What else is written on stdout goes to stderr."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # C libraries may print

    def tell(**fields: object) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    options = Options(
        **json.loads(sys.argv[1]),
        progress=lambda done, total: tell(done=done, total=total),
        compiling=lambda compiled, kernels: tell(compiled=compiled, kernels=kernels),
    )
    return options, tell


def _leave_with_parent() -> None:
    """End when stdin is closed: the parent alone has its other end."""
    with suppress(OSError):
        while os.read(0, LONGEST):
            pass
    os._exit(1)


class _Watchdog:
    """Ends a child after so many seconds, counted anew from each `renew`."""

    def __init__(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        self.has_bitten = False
        self._child, self._seconds, self._left = child, seconds, threading.Event()
        self.renew()
        threading.Thread(target=self._watch, daemon=True).start()

    def renew(self) -> None:
        """Give the child its whole time again."""
        self._end = time.monotonic() + self._seconds

    def leave(self) -> None:
        """Watch no longer."""
        self._left.set()

    def _watch(self) -> None:
        while (left := self._end - time.monotonic()) > 0:
            if self._left.wait(left):
                return
        self.has_bitten = True
        self._child.kill()


def _heard(lines: IO[bytes] | None, hear: Callable[[], None]) -> Iterator[bytes]:
    for line in lines or ():
        hear()
        yield line


def _outcome(lines: Iterable[bytes] | None, options: Options, hear: Callable[[Told], None]) -> Told | None:
    """The child's last line, or None if it ended before that."""
    for line in lines or ():
        try:
            told = json.loads(line)
        except ValueError:  # it died while it wrote
            return None
        if "kind" in told:
            return dict(told)
        if "done" in told:
            if options.progress:
                options.progress(told["done"], told["total"])
        elif "kernels" in told:
            if options.compiling:
                options.compiling(told["compiled"], told["kernels"])
        else:
            hear(told)
    return None


def _last_words(words: IO[bytes]) -> str:
    """The last line that the child wrote, of printable characters."""
    words.seek(0, os.SEEK_END)
    words.seek(max(words.tell() - LONGEST, 0))
    lines = [line.strip() for line in words.read().decode("utf-8", "replace").splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if "GGML_ASSERT" in line), lines[-1] if lines else "without a word")
    return "".join(character for character in line if character.isprintable())[:200]
