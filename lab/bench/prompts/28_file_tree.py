"""Walk, measure and print directory trees."""

import fnmatch
import shutil
from pathlib import Path

DEFAULT_IGNORE = (".git", "__pycache__", "*.pyc", "node_modules")


def is_ignored(path, patterns=DEFAULT_IGNORE):
    """Say whether the name of a path matches one of the patterns."""
    for pattern in patterns:
        if fnmatch.fnmatch(path.name, pattern):
            return True
    return False


def iter_files(root, patterns=DEFAULT_IGNORE):
    """Yield all files below ``root`` in sorted order. Ignored directories are not
    entered and symbolic links are not followed.
    """
    for path in sorted(Path(root).iterdir()):
        if is_ignored(path, patterns) or path.is_symlink():
            continue
        if path.is_dir():
            yield from iter_files(path, patterns)
        else:
            yield path


def tree_size(root):
    """Return the total size of the files below ``root`` in bytes."""
    total = 0
    for path in iter_files(root):
        total += path.stat().st_size
    return total


def format_tree(root, prefix=""):
    """Return the lines of a drawing of the tree below ``root``."""
    entries = [path for path in sorted(Path(root).iterdir()) if not is_ignored(path)]
    lines = []
    for index, path in enumerate(entries):
        is_last = index == len(entries) - 1
        branch = "`-- " if is_last else "|-- "
        lines.append(prefix + branch + path.name)
        if path.is_dir():
            indent = "    " if is_last else "|   "
            lines.extend(format_tree(path, prefix + indent))
    return lines


def sync_tree(source, destination):
    """Copy files that are missing or newer to ``destination`` and return the list of
    the copied paths, relative to ``source``.
    """
    copied = []
    for path in iter_files(source):
        relative = path.relative_to(source)
        target = Path(destination) / relative
        if target.exists() and target.stat().st_mtime >= path.stat().st_mtime:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        copied.append(relative)
    return copied
