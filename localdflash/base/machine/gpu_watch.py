"""Count the processes that a GPU driver aborted, which it does if a device is lost or full.

A file in the runtime folder holds a byte that is up while the GPU computes, and the times of earlier deaths.
"""

import mmap
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Self

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import create_private, runtime_folder
from localdflash.base.system.file_lock import process_lock

UP, DOWN = ord("1"), ord("0")
MEMORY_SECONDS = 86_400.0
MAX_DEATHS = 2  # after which `--device auto` does not use the GPU
MAX_FILE_BYTES = 1 << 12
Watch = AbstractContextManager[object, None]
UNWATCHED: Watch = nullcontext()


class Flag(AbstractContextManager["Flag", None]):
    """Byte of the file that is up inside `with`, which may be nested."""

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
        """Close the file."""
        self._byte.close()


def deaths() -> int:
    """Return how often a GPU ended a process of this user within a day; 0 if unknown."""
    if not _place().exists():
        return 0
    with suppress(OSError):
        with suppress(TimeoutError), _lock():
            return len(_settled())
        return len(_times())
    return 0


def watch(stack: ExitStack) -> Watch:
    """Return this process's flag, held until the stack is closed; a dummy if another process has it or on errors."""
    with suppress(OSError, LocaldflashError):
        create_private(runtime_folder())
        stack.enter_context(_lock())
        _settled()
        flag = Flag(_place())
        stack.callback(flag.close)
        return flag
    return UNWATCHED


def _settled() -> Sequence[float]:
    """Return the times of deaths, including the last watched process if its flag is still up; rewrite the file."""
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
