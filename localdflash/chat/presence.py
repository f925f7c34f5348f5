"""Who has a file open: each process holds a lock on `<file>.lock` for as long, and no longer than it lives."""

import os
import time
from pathlib import Path

from localdflash.base.errors import StoreFailed
from localdflash.base.system import file_lock

PATIENCE = 5.0  # seconds to wait for another process
_PAUSE = 0.01


class Presence:
    """Shared by those that use the file, exclusive for one that makes, checks or replaces it."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._failed(error) from error

    def alone(self) -> bool:
        """Become the only one from here on; False, and still shared, if others are there."""
        if self._taken(shared=False):
            return True
        self.share()
        return False

    def share(self) -> None:
        """Become one of many. StoreFailed if another process stays alone for long."""
        end = time.monotonic() + PATIENCE
        while not self._taken(shared=True):
            if time.monotonic() > end:
                raise StoreFailed(f"{self._path}: another localdflash has kept your chats locked; try again")
            time.sleep(_PAUSE)

    def leave(self) -> None:
        """Stop using the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _taken(self, *, shared: bool) -> bool:
        try:
            return file_lock.take(self._file, shared=shared)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreFailed:
        return StoreFailed(f"{self._path}: cannot lock your chats: {error.strerror}")
