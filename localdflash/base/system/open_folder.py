"""Folder held open: operations happen in it even if its path is replaced meanwhile; no link is followed.

Python on Windows cannot hold a folder open: there every step goes by the path and checks for links right before it.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any, Self

from localdflash.base.system.descriptor import READ

BY_PATH = os.open not in os.supports_dir_fd
_FOLDER = READ | getattr(os, "O_DIRECTORY", 0)
_LINKS = (0xA000000C, 0xA0000003)  # reparse tags of symbolic links and junctions


class OpenFolder:
    """Folder opened by its path, or by its name in another folder; OSError if it is missing or a link."""

    def __init__(self, path: str | Path, within: "OpenFolder | None" = None) -> None:
        self._path = within._of(path) if within else os.fspath(path)
        self._held = -1
        if BY_PATH:
            if not stat.S_ISDIR(_look(self._path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
        else:
            self._held = os.open(path, _FOLDER, **(within._here() if within else {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def open(self, name: str, flags: int = READ, mode: int = 0o666) -> int:
        """Return the descriptor of a file in it, which is no link."""
        if BY_PATH and not flags & os.O_CREAT:
            _look(self._of(name))
        return os.open(self._of(name), flags, mode, **self._here())

    def about(self, name: str) -> os.stat_result:
        """Return the status of an entry, not following links."""
        return os.stat(self._of(name), follow_symlinks=False, **self._here())

    def make(self, name: str) -> None:
        """Create a folder."""
        os.mkdir(self._of(name), **self._here())

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(self._of(name), **self._here())

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._of(name), **self._here())

    def replace(self, old: str, new: str) -> None:
        """Rename a file, replacing one of the new name."""
        os.replace(self._of(old), self._of(new), **self._both())

    def link(self, old: str, new: str) -> None:
        """Create a hard link; FileExistsError if the name is taken."""
        os.link(self._of(old), self._of(new), **self._both(), **({} if BY_PATH else {"follow_symlinks": False}))

    def sync(self) -> None:
        """Flush created, renamed and removed entries to disk; OSError if the system cannot."""
        os.fsync(self._held)

    def _of(self, name: str | Path) -> str:
        return os.path.join(self._path, name) if BY_PATH else os.fspath(name)

    def _here(self) -> dict[str, Any]:
        return {} if BY_PATH else {"dir_fd": self._held}

    def _both(self) -> dict[str, Any]:
        return {} if BY_PATH else {"src_dir_fd": self._held, "dst_dir_fd": self._held}


def _look(path: str) -> os.stat_result:
    """Return the status of a path; OSError if it is a link."""
    about = os.lstat(path)
    if stat.S_ISLNK(about.st_mode) or getattr(about, "st_reparse_tag", 0) in _LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return about
