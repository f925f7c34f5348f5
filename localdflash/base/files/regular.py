"""Open model and settings files safely: only regular files, without blocking, with failures as ModelError."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.system.descriptor import READ

_OPEN_FLAGS = READ & ~getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def open_model(path: Path) -> Iterator[tuple[io.BufferedReader, int]]:
    """Open a regular file (or a link to one) for reading; yields the stream and the file's size in bytes."""
    descriptor = _open_regular(path)
    with os.fdopen(descriptor, "rb") as stream:
        try:
            yield stream, os.fstat(descriptor).st_size
        except OSError as error:
            raise ModelError(f"{path}: cannot read: {error.strerror}; check the disk") from error


def _open_regular(path: Path) -> int:
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise ModelError(f"{path}: cannot open: {error.strerror}; check the path and its permissions") from error
    except ValueError as error:
        raise ModelError(f"{str(path)!a}: cannot open: {error}; check the path") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise ModelError(f"{path}: not a regular file; give the path of a regular file")
