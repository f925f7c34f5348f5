"""Locks on an open file, shared or exclusive: they end with its last descriptor, and keep nobody from reading it.

A second descriptor of the same file, in this process too, is somebody else's.
"""

import sys

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _AT = 1 << 30  # the byte that is locked: beyond the content, which Windows would keep others from reading
    _AT_ONCE, _EXCLUSIVE, _HELD = 1, 2, 33  # LOCKFILE_FAIL_IMMEDIATELY, LOCKFILE_EXCLUSIVE_LOCK, ERROR_LOCK_VIOLATION

    class _Overlapped(ctypes.Structure):
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
        """Lock a file, or change the lock that this descriptor has, without waiting; False if others have theirs.

        A change gives up the lock first. OSError where the file system has no locks.
        """
        handle, place = msvcrt.get_osfhandle(file), ctypes.byref(_Overlapped(offset=_AT))
        _kernel.UnlockFileEx(handle, 0, 1, 0, place)
        if _kernel.LockFileEx(handle, _AT_ONCE | (0 if shared else _EXCLUSIVE), 0, 1, 0, place):
            return True
        if (error := ctypes.get_last_error()) != _HELD:
            raise OSError(None, ctypes.FormatError(error), None, error)
        return False

else:
    import fcntl

    def take(file: int, *, shared: bool = False) -> bool:
        """Lock a file, or change the lock that this descriptor has, without waiting; False if others have theirs.

        A change gives up the lock first. OSError where the file system has no locks.
        """
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
