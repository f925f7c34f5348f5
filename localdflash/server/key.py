"""The key that requests over TCP need: a file for this user alone, created when it is first needed."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.base.system import owner

LARGEST = 4096  # bytes


def own_key(path: Path) -> str:
    """The key in this file, which is created if there is none. Two processes get the same key."""
    if not path.exists():
        paths.create_private(path.parent)
        _create(path, secrets.token_urlsafe(32))
    return read_key(path)


def read_key(path: Path) -> str:
    """The key in this file; UsageError if it is missing or empty, or others may read it."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(LARGEST)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the key: {error.strerror}") from None
    if owner.is_open_to_others(about) or not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path}: others may read this key: remove it for a new one, or chmod 600 it")
    key = data.decode("ascii", "replace").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{path}: not a key: one line of ASCII; remove it for a new one")
    return key


def _create(path: Path, key: str) -> None:
    """Put a complete file in place, unless another process was first."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()  # of a process with our number that was killed
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
        with suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise LocaldflashError(f"{path}: cannot write the key: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
