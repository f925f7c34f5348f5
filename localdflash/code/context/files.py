"""Read a file of a workspace, but only a plain, small text file that is reached without any link.

Every folder on the way is opened from the one before and no link is followed, so that nothing that changes meanwhile
leads out of the root. FIFOs, sockets and devices are refused before a byte is read, and opening them does not wait.
"""

import os
import stat
from contextlib import ExitStack
from typing import NamedTuple

from localdflash.base.system.open_folder import OpenFolder
from localdflash.text.sanitize import sanitize

LARGEST = 1_000_000  # bytes
LONGEST_LINE = 5_000  # characters: what has longer ones was not written by hand


class Signature(NamedTuple):
    """Identifies one state of a file."""

    inode: int
    size: int
    changed_ns: int


def signature(path: str) -> Signature | None:
    """The signature of a plain file; None if there is none."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return _signature(found) if stat.S_ISREG(found.st_mode) else None


def read_text(root: str, name: str) -> str | None:
    """The text of a file by its path below a root; None if it is not what the module says."""
    data = read_bytes(root, name)
    if data is None or b"\0" in data:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if is_minified(text) else text


def read_bytes(root: str, name: str) -> bytes | None:
    """The bytes of such a file, text or not."""
    *folders, last = name.split("/")
    if not all(part not in {"", ".", ".."} for part in (*folders, last)):
        return None
    try:
        with ExitStack() as opened:
            here = opened.enter_context(OpenFolder(os.path.realpath(root)))
            for folder in folders:
                here = opened.enter_context(OpenFolder(folder, here))
            file = opened.enter_context(open(here.open(last), "rb", buffering=0))
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
                return None
            data = file.read(LARGEST + 1)
            return data if data is not None and len(data) <= LARGEST else None
    except (OSError, ValueError):
        return None


def is_minified(text: str) -> bool:
    """Whether a line is longer than people write."""
    return len(text) > LONGEST_LINE and max(map(len, text.split("\n"))) > LONGEST_LINE


def clean(name: str) -> str:
    """A name that is safe in a prompt or a message: one line, without invisible characters."""
    return sanitize(name.replace("\r", "\u240d").replace("\n", "\u240a").replace("\t", "\u2409"))


def _signature(found: os.stat_result) -> Signature:
    return Signature(found.st_ino, found.st_size, found.st_mtime_ns)
