"""Access to the files that an answer may change: below one folder, with allowed names, without following links."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from localdflash.base.errors import UsageError
from localdflash.base.system.open_folder import OpenFolder
from localdflash.code.context.denied import is_secret
from localdflash.text.sanitize import sanitize

MAX_FILE_BYTES = 1_000_000  # size limit of a file before and after a change
_REPOSITORY = re.compile(r"\.(?:git|hg|svn|jj)|git~\d+", re.IGNORECASE)  # git~1: the short name of .git on Windows


class WorkspaceFile(NamedTuple):
    """Content and mode of a file. `identity` differs if the file is changed later."""

    data: bytes
    mode: int
    identity: tuple[int, int, int]  # inode, size, modification time in nanoseconds


class WorkspaceFolder:
    """Folder below which answers may change files. Error messages lack the file's name, which callers put in front."""

    def __init__(self, root: Path) -> None:
        self.path = os.path.realpath(root)

    def check(self, name: str) -> str:
        """Return the name without `./`; UsageError if answers may not change a file with this name."""
        plain = normalise_name(name)
        if is_secret(PurePosixPath(self.path, plain)):
            raise UsageError("is on the list of secret files")
        from localdflash.code.context.ignore import IgnoreRules

        if IgnoreRules(Path(self.path)).ignored(plain):  # read on every call: the ignore files may have changed
            raise UsageError("is ignored by .gitignore or .localdflashignore")
        return plain

    @contextmanager
    def reach(self, name: str, created: list[str] | None = None) -> Iterator[tuple[OpenFolder, str] | None]:
        """Yield the open folder of a file and the file's name in that folder, or None if the folder is missing.

        With `created`, create missing folders, and append their names to this list.
        """
        *folders, last = name.split("/")
        current = OpenFolder(self.path)
        try:
            for depth, folder in enumerate(folders, 1):
                with suppress(FileExistsError):
                    if created is not None:
                        current.make(folder)
                        created.append("/".join(folders[:depth]))
                child = _open_folder(current, folder)
                if child is None:
                    yield None
                    return
                current.close()
                current = child
            yield current, last
        finally:
            current.close()

    def read(self, name: str) -> WorkspaceFile | None:
        """Read a file whose name was checked, or return None if it is missing; UsageError if it is unsuitable."""
        try:
            with self.reach(name) as place:
                return read_at(*place) if place else None
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}") from error


def normalise_name(name: str) -> str:
    """Return a file name without `./`; UsageError if it is not allowed in answers. Does not access the disk."""
    if sanitize(name) != name or "\n" in name or "\t" in name:
        raise UsageError("has control or invisible characters in its name")
    if name.startswith(("/", "~")) or "\\" in name or re.match(r"[A-Za-z]:", name):
        raise UsageError("is not a relative path with slashes")
    parts = [part for part in name.split("/") if part != "."]
    if ".." in parts:
        raise UsageError("leads out of this folder")
    if not parts or any(part != part.strip().rstrip(".") for part in parts) or not all(parts):
        raise UsageError("is not an allowed file name: a part is empty, or has a space at an edge or a final dot")
    if any(_REPOSITORY.fullmatch(part) for part in parts):
        raise UsageError("belongs to version control")
    if len(os.fsencode(name)) > 1024 or any(len(os.fsencode(part)) > 255 for part in parts):
        raise UsageError("has too long a name")
    return "/".join(parts)


def read_at(folder: OpenFolder, name: str) -> WorkspaceFile | None:
    """Read a file in an open folder; None if it is missing. UsageError if it is a link, not regular, or too large."""
    try:
        status = folder.status(name)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise UsageError("is a link")
    if not stat.S_ISREG(status.st_mode):
        raise UsageError("is not a plain file")
    with open(folder.open(name), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        data = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
    if data is None:
        raise UsageError("is not a plain file")
    if max(status.st_size, len(data)) > MAX_FILE_BYTES:
        raise UsageError("is larger than 1 MB")
    return WorkspaceFile(data, stat.S_IMODE(status.st_mode), (status.st_ino, status.st_size, status.st_mtime_ns))


def _open_folder(parent: OpenFolder, name: str) -> OpenFolder | None:
    try:
        return OpenFolder(name, parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        mode = parent.status(name).st_mode
        if stat.S_ISLNK(mode):
            raise UsageError("is reached through a link") from error
        if not stat.S_ISDIR(mode):
            raise UsageError("is below something that is not a folder") from error
        raise
