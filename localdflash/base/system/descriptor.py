"""Files by their descriptors: flags, modes, reading and writing at a place. What a system has not is left out."""

import os
import sys

# Not inherited, no link at the end of the path, text as it is.
PLAIN = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY", "O_NOINHERIT"))
READ = os.O_RDONLY | PLAIN | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # a FIFO is not waited for
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN


def set_mode(file: int, mode: int) -> None:
    """Set who may use a file. Windows has an access list for that, which stays."""
    if sys.platform != "win32":
        os.fchmod(file, mode)


def set_blocking(file: int, blocking: bool) -> None:
    """Have reads and writes wait, or not. Windows' pipes always do."""
    if sys.platform != "win32":
        os.set_blocking(file, blocking)


def read_at(file: int, count: int, offset: int) -> bytes:
    """At most so many bytes from an offset. On Windows it moves the descriptor's place: not for two threads at once."""
    if sys.platform == "win32":
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, count)
    else:
        return os.pread(file, count, offset)


def write_at(file: int, data: bytes | memoryview, offset: int) -> int:
    """Write at an offset, as `read_at` reads; return how many bytes were written."""
    if sys.platform == "win32":
        os.lseek(file, offset, os.SEEK_SET)
        return os.write(file, data)
    else:
        return os.pwrite(file, data, offset)


def in_memory(name: str) -> int:
    """Return a new file that is on no disk; OSError where the system has none."""
    if sys.platform == "linux":
        return os.memfd_create(name)
    else:
        raise OSError("files in memory are Linux'")
