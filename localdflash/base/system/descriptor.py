"""Functions on file descriptors that also work on Windows, and flags to open them."""

import os
import sys

BASE_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY", "O_NOINHERIT"))
READ = os.O_RDONLY | BASE_FLAGS | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # never waits for a FIFO
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BASE_FLAGS


def set_mode(file: int, mode: int) -> None:
    """Set a file's mode; on Windows, which has access lists instead, do nothing."""
    if sys.platform != "win32":
        os.fchmod(file, mode)


def set_blocking(file: int, blocking: bool) -> None:
    """Make reads and writes blocking or not; on Windows, pipes always block."""
    if sys.platform != "win32":
        os.set_blocking(file, blocking)


def read_at(file: int, count: int, offset: int) -> bytes:
    """Read at most `count` bytes at an offset. On Windows only one thread may do this: it moves the file position."""
    if sys.platform == "win32":
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, count)
    else:
        return os.pread(file, count, offset)


def write_at(file: int, data: bytes | memoryview, offset: int) -> int:
    """Write at an offset; return the number of bytes written. See `read_at` for Windows."""
    if sys.platform == "win32":
        os.lseek(file, offset, os.SEEK_SET)
        return os.write(file, data)
    else:
        return os.pwrite(file, data, offset)


def open_in_memory() -> int:
    """Return the descriptor of a new file in memory; OSError on systems other than Linux."""
    if sys.platform == "linux":
        return os.memfd_create("localdflash")
    else:
        raise OSError("only Linux has files in memory")
