"""The files of packed models: written under a temporary name, renamed when complete, removed when orphaned.

Every failure to write is a `NotKept`, so that it is not mistaken for a failure to read the source.
"""

import os
from contextlib import suppress
from pathlib import Path

from localdflash.cpu.image import mapped, read_header

SUFFIX = ".packed"


class NotKept(Exception):
    """Why a packed file could not be written."""


class Output:
    """A new file, readable by this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "Output":
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
                count = os.pwrite(self._descriptor, left, offset)
                left, offset = left[count:], offset + count
        except OSError as error:
            raise NotKept(error.strerror) from None

    def finish(self, name: Path) -> None:
        """Give the file its name once all of it is on disk."""
        try:
            os.fsync(self._descriptor)
            self._path.replace(name)
        except OSError as error:
            raise NotKept(error.strerror) from None


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
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def remove(path: Path) -> None:
    """Remove a file, if that is possible."""
    with suppress(OSError):  # somebody else was faster, or it has its name by now
        path.unlink()
