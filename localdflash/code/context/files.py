"""Read small, regular text files below a root folder. Folders are opened one by one, so no link is followed."""

import os
import stat
from contextlib import ExitStack
from typing import NamedTuple

from localdflash.base.system.open_folder import OpenFolder
from localdflash.text.sanitize import sanitize

MAX_FILE_BYTES = 1_000_000
MAX_LINE_CHARS = 5_000  # a text with a longer line counts as minified


class Signature(NamedTuple):
    """Inode, size in bytes and modification time of a file: equal if the file is unchanged."""

    inode: int
    size: int
    modified_ns: int


def read_signature(path: str) -> Signature | None:
    """Return the signature of a regular file; None if the path is anything else, such as a link."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return Signature(status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def read_text(root: str, name: str) -> str | None:
    """Return the text of the file at path `name` below a root; None if it is unreadable, binary or minified."""
    data = read_bytes(root, name)
    if data is None or b"\0" in data:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if is_minified(text) else text


def read_bytes(root: str, name: str) -> bytes | None:
    """Return the bytes of the file at path `name` below a root; None if too large, a link or unreadable."""
    *folders, last = name.split("/")
    if not all(part not in {"", ".", ".."} for part in (*folders, last)):
        return None
    try:
        with ExitStack() as stack:
            parent = stack.enter_context(OpenFolder(os.path.realpath(root)))
            for folder in folders:
                parent = stack.enter_context(OpenFolder(folder, parent))
            file = parent.open(last)
            stack.callback(os.close, file)
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                return None
            with open(file, "rb", buffering=0, closefd=False) as reader:
                data = reader.read(MAX_FILE_BYTES + 1)
            return data if data is not None and len(data) <= MAX_FILE_BYTES else None
    except (OSError, ValueError):
        return None


def is_minified(text: str) -> bool:
    """Return whether the text has a line longer than `MAX_LINE_CHARS`."""
    return len(text) > MAX_LINE_CHARS and max(map(len, text.split("\n"))) > MAX_LINE_CHARS


def clean_name(name: str) -> str:
    """Return a name that is safe in a prompt or a message: one line, without invisible characters."""
    return sanitize(name.replace("\r", "\u240d").replace("\n", "\u240a").replace("\t", "\u2409"))
