"""List the files below a folder, breadth first, without ignored files, secrets, links and build results."""

import os
import time
from collections import deque
from pathlib import PurePath
from typing import NamedTuple

from localdflash.code.context.denied import is_secret
from localdflash.code.context.files import clean_name
from localdflash.code.context.ignore import IgnoreRules

MAX_FILES = 100_000  # files per listing
MAX_SECONDS = 2.0  # time limit of a listing
VERSION_CONTROL = {".git", ".hg", ".svn", ".jj"}
SKIPPED = VERSION_CONTROL | {
    *("node_modules", "bower_components", ".venv", "venv", ".tox", ".nox", "site-packages", "__pycache__", ".eggs"),
    *("build", "dist", "target", ".next", ".nuxt", ".gradle", ".idea", ".vscode", ".terraform", ".cache"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", "Pods", "DerivedData"),
}


class Listing(NamedTuple):
    """Paths relative to the root. `cut`: a limit was reached, so files may be missing."""

    names: tuple[str, ...]
    cut: bool


def may_enter(rules: IgnoreRules, name: str) -> bool:
    """Return whether to list the folder at path `name` below the root, if the folders above it are listed."""
    path = PurePath(name)
    return path.name not in SKIPPED and not is_secret(path) and not rules.ignored_entry(name, True)


def list_files(root: str, rules: IgnoreRules) -> Listing:
    """Return the files below a root, sorted by name within each folder, up to `MAX_FILES` or `MAX_SECONDS`."""
    names: list[str] = []
    folders, end = deque([""]), time.monotonic() + MAX_SECONDS
    while folders:
        folder = folders.popleft()
        for entry in list_entries(f"{root}/{folder}"):
            if len(names) >= MAX_FILES or time.monotonic() > end:
                return Listing(tuple(names), True)
            name = f"{folder}/{entry.name}" if folder else entry.name
            if clean_name(name) != name:
                continue
            if entry.is_dir(follow_symlinks=False):
                if may_enter(rules, name):
                    folders.append(name)
            elif entry.is_file(follow_symlinks=False) and not (is_secret(PurePath(name)) or rules.ignored_entry(name)):
                names.append(name)
    return Listing(tuple(names), False)


def list_entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, by name; [] if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []  # deleted meanwhile, or not readable
