"""The files of packed models: written under a temporary name, sealed and renamed when complete, removed when orphaned.

A seal is the digest of all that is before it, and says which file that was found in (inode and time of change). In that
very file it counts without another look; in one that was copied, restored or written to, all of it is read again.

Every failure to write is a `NotKept`, so that it is not mistaken for a failure to read the source.
"""

import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from localdflash.backends.cpu.image import mapped, read_header
from localdflash.base.system.descriptor import write_at
from localdflash.base.system.process import is_there

SUFFIX = ".packed"
SEAL = struct.Struct("<QQ32s")  # inode, nanoseconds of the last change, SHA-256
SECOND = 1_000_000_000
CHUNK = 1 << 20


class NotKept(Exception):
    """Why a packed file could not be written."""


class Output:
    """A new file, readable by this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "Output":
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise NotKept(error.strerror) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write at an offset."""
        left = memoryview(data).cast("B")
        try:
            while left:
                count = write_at(self._descriptor, left, offset)
                left, offset = left[count:], offset + count
        except OSError as error:
            raise NotKept(error.strerror) from None

    def finish(self, name: Path) -> None:
        """Seal the file, and give it its name once all of it is on disk."""
        try:
            with open(self._descriptor, "r+b", buffering=0, closefd=False) as stream:
                size = os.fstat(self._descriptor).st_size
                _seal(stream, size, _digest(stream, size))
            os.fsync(self._descriptor)
            self._path.replace(name)
        except OSError as error:
            raise NotKept(error.strerror) from None


def is_intact(path: Path) -> bool:
    """Whether a sealed file holds what was written; it is read where it is not the file that was sealed."""
    try:
        with path.open("rb", buffering=0) as stream:
            about = os.fstat(stream.fileno())
            size = about.st_size - SEAL.size
            stream.seek(size)
            inode, changed, digest = SEAL.unpack(stream.read(SEAL.size))
            if (inode, changed) == (about.st_ino, about.st_mtime_ns):
                return True
            if _digest(stream, size) != digest:
                return False
    except OSError:
        return False
    with suppress(OSError), path.open("r+b", buffering=0) as stream:  # else it is read at every start
        _seal(stream, size, digest)
    return True


def _digest(stream: BinaryIO, size: int) -> bytes:
    """Of the first bytes of a file."""
    digest = hashlib.sha256()
    stream.seek(0)
    while size and (read := stream.read(min(size, CHUNK))):
        digest.update(read)
        size -= len(read)
    return digest.digest()


def _seal(stream: BinaryIO, size: int, digest: bytes) -> None:
    about = os.fstat(stream.fileno())
    changed = about.st_mtime_ns // SECOND * SECOND  # every file system keeps whole seconds
    stream.seek(size)
    stream.write(SEAL.pack(about.st_ino, changed, digest))
    os.utime(stream.fileno(), ns=(about.st_atime_ns, changed))


def clean(folder: Path) -> None:
    """Remove what processes left unfinished, and packed files whose source is gone."""
    for path in folder.iterdir():
        if _is_abandoned(path) or (path.suffix == SUFFIX and _is_orphan(path)):
            remove(path)


def _is_orphan(path: Path) -> bool:
    buffer = mapped(path)
    header = read_header(buffer) if buffer else None
    return header is None or not os.path.exists(header.stamp.path)


def _is_abandoned(path: Path) -> bool:
    """Whether the process that was writing this has ended."""
    number = path.suffix.removeprefix(".").partition("-")[0]
    if not number.isdecimal():
        return False
    return not is_there(int(number))


def remove(path: Path) -> None:
    """Remove a file, if that is possible."""
    with suppress(OSError):  # somebody else was faster, or it has its name by now
        path.unlink()
