"""Whether a GPU ended the engine: drivers abort the process where a device is lost or full, and nobody can catch that.

A file in the runtime folder holds one byte that is up while the GPU computes, and below it the times at which a process
was found to have died so. One process at a time keeps watch, under a lock that its death releases.
"""

import mmap
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Self

from filelock import Timeout

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import create_private, runtime_folder
from localdflash.base.system.file_lock import process_lock

UP, DOWN = ord("1"), ord("0")
MEMORY_SECONDS = 86_400.0  # seconds
MAX_DEATHS = 2  # deaths from which on a GPU that nobody named is left alone
MAX_FILE_BYTES = 1 << 12  # bytes of the file
Watch = AbstractContextManager[object, None]
UNWATCHED: Watch = nullcontext()


class Flag(AbstractContextManager["Flag", None]):
    """Up inside `with`, which may be nested."""

    def __init__(self, place: Path) -> None:
        self._depth = 0
        with place.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    def __enter__(self) -> Self:
        self._depth += 1
        self._byte[0] = UP
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._byte[0] = DOWN

    def close(self) -> None:
        """Leave the file to others."""
        self._byte.close()


def deaths() -> int:
    """Return how often a GPU ended a process of this user within a day; 0 where that cannot be known."""
    if not _place().exists():
        return 0
    with suppress(OSError):
        with suppress(Timeout), _lock():
            return len(_settled())
        return len(_times())
    return 0


def watch(stack: ExitStack) -> Watch:
    """The flag of this process until the stack is closed; one that nobody sees where another process has it, or where
    the folder cannot be written.
    """
    with suppress(OSError, LocaldflashError, Timeout):
        create_private(runtime_folder())
        stack.enter_context(_lock())
        _settled()
        flag = Flag(_place())
        stack.callback(flag.close)
        return flag
    return UNWATCHED


def _settled() -> Sequence[float]:
    """The times of deaths, with that of the process watched last if its flag is still up; its file is written anew."""
    now = time.time()
    times = [one for one in _times() if 0 <= now - one < MEMORY_SECONDS]
    if _read()[:1] == bytes([UP]):
        times.append(now)
    lines = (chr(DOWN), *(str(int(one)) for one in times))
    _place().write_text("".join(f"{line}\n" for line in lines), "ascii")
    return times


def _times() -> Sequence[float]:
    return [float(line) for line in _read()[1:].split() if line.isdigit()]


def _read() -> bytes:
    try:
        with _place().open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return b""


def _place() -> Path:
    return runtime_folder() / "gpu"


def _lock() -> AbstractContextManager[None]:
    return process_lock(runtime_folder() / "gpu.lock")
