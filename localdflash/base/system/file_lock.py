"""File locks: `try_lock` locks a descriptor, shared or exclusive; `process_lock` locks a path for this process.

A forked child inherits a lock of `try_lock` (`flock`), but not of `process_lock` (`fcntl`). Closing any descriptor of
a file releases its `fcntl` lock, so `process_lock` opens no path that this process has locked already.
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
_held_paths: set[Path] = set()
_guard = threading.Lock()

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _LOCKED_BYTE = 1 << 30  # beyond the content: other processes cannot read a locked byte
    _FAIL_IMMEDIATELY, _EXCLUSIVE, _VIOLATION = 1, 2, 33  # LOCKFILE_… of LockFileEx, ERROR_LOCK_VIOLATION

    class _OverlappedIo(ctypes.Structure):
        """Windows' structure OVERLAPPED."""

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

    def try_lock(file: int, *, shared: bool = False) -> bool:
        """Lock a file, or change this descriptor's lock, without waiting; False if another lock conflicts."""
        handle, overlapped = msvcrt.get_osfhandle(file), ctypes.byref(_OverlappedIo(offset=_LOCKED_BYTE))
        _kernel.UnlockFileEx(handle, 0, 1, 0, overlapped)  # locks add up; without a lock this fails without effect
        if _kernel.LockFileEx(handle, _FAIL_IMMEDIATELY | (0 if shared else _EXCLUSIVE), 0, 1, 0, overlapped):
            return True
        if (error := ctypes.get_last_error()) != _VIOLATION:
            raise OSError(None, ctypes.FormatError(error), None, error)
        return False

else:
    import fcntl

    def try_lock(file: int, *, shared: bool = False) -> bool:
        """Lock a file, or change this descriptor's lock, without waiting; False if another lock conflicts."""
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def process_lock(path: Path, timeout: float = 0.0, give_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of this path, waiting up to `timeout` seconds; OSError if the file cannot be created.

    TimeoutError if another process or thread still holds the lock, or if `give_up` returns True.
    """
    deadline = time.monotonic() + timeout
    while (file := _open_locked(path)) is None:
        if give_up() or time.monotonic() >= deadline:
            raise TimeoutError(str(path))
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        with _guard:
            os.close(file)
            _held_paths.discard(path)


def _open_locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock; None if another thread or process holds the lock."""
    with _guard:
        if path in _held_paths:
            return None
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if _try_process_lock(file):
                _held_paths.add(path)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None


if sys.platform == "win32":  # Windows has no forks
    _try_process_lock = try_lock
else:

    def _try_process_lock(file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True
