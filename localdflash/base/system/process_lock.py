"""A lock on a file that is this process's alone, until it ends: no child has it, not even one that C code forks.

Those of `flock` stay with the open file, which every fork keeps open: one that hangs holds on to what its parent had.
Record locks (`fcntl`) belong to the process. They would end when any descriptor of the file is closed here, so the file
is opened by nobody else, and a second lock in this process is refused before it is opened.
"""

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout

from localdflash.base.system import file_lock

POLL = 0.05  # seconds between two tries
_here: set[Path] = set()
_guard = threading.Lock()


@contextmanager
def process_lock(path: Path, patience: float = 0.0, give_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of this path; Timeout if another process, or thread, has it for so many seconds, or `give_up`
    says so. OSError where the file cannot be made.
    """
    end = time.monotonic() + patience
    while (file := _taken(path)) is None:
        if give_up() or time.monotonic() >= end:
            raise Timeout(str(path))
        time.sleep(POLL)
    try:
        yield
    finally:
        with _guard:
            os.close(file)
            _here.discard(path)


def _taken(path: Path) -> int | None:
    """The descriptor that has the lock; None if it cannot be had now."""
    with _guard:
        if path in _here:
            return None
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if _try(file):
                _here.add(path)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None


if sys.platform == "win32":  # which has no forks
    _try = file_lock.take
else:

    def _try(file: int) -> bool:
        """Whether the lock can be had now; OSError where the file system has none."""
        import fcntl

        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True
