"""Open folder: file operations stay in the folder even if its path is replaced meanwhile, and follow no link.

Python on Windows cannot open a folder. There, every operation uses the path, and checks it for links just before.
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
        self._path = within._path_in(path) if within else os.fspath(path)
        self._descriptor = -1
        if BY_PATH:
            if not stat.S_ISDIR(_stat_unlinked(self._path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
        else:
            self._descriptor = os.open(path, _FOLDER, **(within._dir_fd() if within else {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open(self, name: str, flags: int = READ, mode: int = 0o666) -> int:
        """Return the descriptor of a file in this folder; OSError if it is a link."""
        if BY_PATH and not flags & os.O_CREAT:
            _stat_unlinked(self._path_in(name))
        return os.open(self._path_in(name), flags, mode, **self._dir_fd())

    def status(self, name: str) -> os.stat_result:
        """Return the status of an entry, not following links."""
        return os.stat(self._path_in(name), follow_symlinks=False, **self._dir_fd())

    def make(self, name: str) -> None:
        """Create a folder."""
        os.mkdir(self._path_in(name), **self._dir_fd())

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(self._path_in(name), **self._dir_fd())

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._path_in(name), **self._dir_fd())

    def replace(self, old: str, new: str) -> None:
        """Rename a file, replacing any file that has the new name."""
        os.replace(self._path_in(old), self._path_in(new), **self._dir_fd_pair())

    def link(self, old: str, new: str) -> None:
        """Create the hard link `new` to the file `old`; FileExistsError if `new` exists."""
        os.link(
            self._path_in(old),
            self._path_in(new),
            **self._dir_fd_pair(),
            **({"follow_symlinks": False} if not BY_PATH else {}),
        )

    def sync(self) -> None:
        """Flush created, renamed and removed entries to disk; OSError if the system does not support it."""
        os.fsync(self._descriptor)

    def _path_in(self, name: str | Path) -> str:
        return os.path.join(self._path, name) if BY_PATH else os.fspath(name)

    def _dir_fd(self) -> dict[str, Any]:
        return {} if BY_PATH else {"dir_fd": self._descriptor}

    def _dir_fd_pair(self) -> dict[str, Any]:
        return {} if BY_PATH else {"src_dir_fd": self._descriptor, "dst_dir_fd": self._descriptor}


def _stat_unlinked(path: str) -> os.stat_result:
    """Return the status of a path; OSError if it is a link."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) in _LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return status
