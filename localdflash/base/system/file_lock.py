"""Locks on files: `take`, shared or exclusive, of a descriptor; `process_lock`, of a process until it ends.

A lock of `take` (`flock`) is inherited by forks, one of `process_lock` (`fcntl`) by no child. The latter would end with
any descriptor of the file in this process, so a second lock here is refused before the file is opened.
"""

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.05
_here: set[Path] = set()
_guard = threading.Lock()

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _AT = 1 << 30  # the byte that is locked: beyond the content, which Windows would keep others from reading
    _AT_ONCE, _EXCLUSIVE, _HELD = 1, 2, 33  # LOCKFILE_FAIL_IMMEDIATELY, LOCKFILE_EXCLUSIVE_LOCK, ERROR_LOCK_VIOLATION

    class _OverlappedIo(ctypes.Structure):
        """`OVERLAPPED`."""

        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.LockFileEx.argtypes = [wintypes.HANDLE, *[wintypes.DWORD] * 4, ctypes.c_void_p]
    _kernel.UnlockFileEx.argtypes = [wintypes.HANDLE, *[wintypes.DWORD] * 3, ctypes.c_void_p]

    def take(file: int, *, shared: bool = False) -> bool:
        """Lock a file, or change this descriptor's lock, without waiting; False if others have theirs."""
        handle, place = msvcrt.get_osfhandle(file), ctypes.byref(_OverlappedIo(offset=_AT))
        _kernel.UnlockFileEx(handle, 0, 1, 0, place)
        if _kernel.LockFileEx(handle, _AT_ONCE | (0 if shared else _EXCLUSIVE), 0, 1, 0, place):
            return True
        if (error := ctypes.get_last_error()) != _HELD:
            raise OSError(None, ctypes.FormatError(error), None, error)
        return False

else:
    import fcntl

    def take(file: int, *, shared: bool = False) -> bool:
        """Lock a file, or change this descriptor's lock, without waiting; False if others have theirs."""
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def process_lock(path: Path, patience: float = 0.0, give_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of this path; OSError if the file cannot be created.

    TimeoutError if another process or thread holds it for `patience` seconds, or `give_up` returns True.
    """
    end = time.monotonic() + patience
    while (file := _taken(path)) is None:
        if give_up() or time.monotonic() >= end:
            raise TimeoutError(str(path))
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        with _guard:
            os.close(file)
            _here.discard(path)


def _taken(path: Path) -> int | None:
    """Return a descriptor that holds the lock; None if it is held elsewhere."""
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
    _try = take
else:

    def _try(file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True
