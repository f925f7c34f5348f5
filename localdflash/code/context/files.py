"""Read small, regular text files of a workspace. Folders are opened one by one, so no link leads out of the root."""

import os
import stat
from contextlib import ExitStack
from typing import NamedTuple

from localdflash.base.system.open_folder import OpenFolder
from localdflash.text.sanitize import sanitize

MAX_FILE_BYTES = 1_000_000
MAX_LINE_CHARS = 5_000  # of a hand-written line


class Signature(NamedTuple):
    """State of a file."""

    inode: int
    size: int
    changed_ns: int


def read_signature(path: str) -> Signature | None:
    """Return the signature of a plain file; None if there is none."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return Signature(found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def read_text(root: str, name: str) -> str | None:
    """Return the text of a file by its path below a root; None if it is refused."""
    data = read_bytes(root, name)
    if data is None or b"\0" in data:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if is_minified(text) else text


def read_bytes(root: str, name: str) -> bytes | None:
    """Return the bytes of a file, text or not; None if it is refused."""
    *folders, last = name.split("/")
    if not all(part not in {"", ".", ".."} for part in (*folders, last)):
        return None
    try:
        with ExitStack() as opened:
            here = opened.enter_context(OpenFolder(os.path.realpath(root)))
            for folder in folders:
                here = opened.enter_context(OpenFolder(folder, here))
            file = here.open(last)
            opened.callback(os.close, file)
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
                return None
            with open(file, "rb", buffering=0, closefd=False) as reader:
                data = reader.read(MAX_FILE_BYTES + 1)
            return data if data is not None and len(data) <= MAX_FILE_BYTES else None
    except (OSError, ValueError):
        return None


def is_minified(text: str) -> bool:
    """Return whether a line is longer than hand-written ones."""
    return len(text) > MAX_LINE_CHARS and max(map(len, text.split("\n"))) > MAX_LINE_CHARS


def clean_name(name: str) -> str:
    """Return a name that is safe in a prompt or a message: one line, without invisible characters."""
    return sanitize(name.replace("\r", "\u240d").replace("\n", "\u240a").replace("\t", "\u2409"))
