"""Count processes that crashed while the GPU was computing: a driver aborts them if the GPU is lost or full.

A file in the runtime folder holds a byte that is set while the GPU computes, and the times of earlier crashes.
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

BUSY, IDLE = ord("1"), ord("0")
MAX_AGE_SECONDS = 86_400.0
MAX_CRASHES = 2  # from this number on, `--device auto` does not use the GPU
MAX_FILE_BYTES = 1 << 12
Watch = AbstractContextManager[object, None]
UNWATCHED: Watch = nullcontext()


class BusyFlag(AbstractContextManager["BusyFlag", None]):
    """First byte of the file, set while a `with` block is open. The blocks may be nested."""

    def __init__(self, path: Path) -> None:
        self._depth = 0
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    def __enter__(self) -> Self:
        self._depth += 1
        self._byte[0] = BUSY
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._byte[0] = IDLE

    def close(self) -> None:
        """Unmap the file."""
        self._byte.close()


def count_crashes() -> int:
    """Return how many of this user's processes crashed on a GPU in the last 24 hours; 0 if unknown."""
    if not _file().exists():
        return 0
    with suppress(OSError):
        with suppress(TimeoutError), _lock():
            return len(_update_crashes())
        return len(_read_crashes())
    return 0


def watch(stack: ExitStack) -> Watch:
    """Lock the file until `stack` is closed, and return its flag; `UNWATCHED` on errors or if it is already locked."""
    with suppress(OSError, LocaldflashError):
        create_private(runtime_folder())
        stack.enter_context(_lock())
        _update_crashes()
        flag = BusyFlag(_file())
        stack.callback(flag.close)
        return flag
    return UNWATCHED


def _update_crashes() -> Sequence[float]:
    """Rewrite the file and return the times of recent crashes; if the flag is still set, add a crash now."""
    now = time.time()
    times = [crash for crash in _read_crashes() if 0 <= now - crash < MAX_AGE_SECONDS]
    if _read()[:1] == bytes([BUSY]):
        times.append(now)
    lines = (chr(IDLE), *(str(int(crash)) for crash in times))
    _file().write_text("".join(f"{line}\n" for line in lines), "ascii")
    return times


def _read_crashes() -> Sequence[float]:
    return [float(line) for line in _read()[1:].split() if line.isdigit()]


def _read() -> bytes:
    try:
        with _file().open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return b""


def _file() -> Path:
    return runtime_folder() / "gpu"


def _lock() -> AbstractContextManager[None]:
    return process_lock(runtime_folder() / "gpu.lock")
