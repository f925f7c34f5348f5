"""Ignore files: `.gitignore` at every level as git reads it, and `.localdflashignore`, which overrides it.

An ignore file that cannot be read, or is larger than a megabyte, ignores its whole folder.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from localdflash.code.context.files import read_bytes, read_signature

OWN_IGNORE_FILE = ".localdflashignore"
IGNORE_FILES = (OWN_IGNORE_FILE, ".gitignore")
MAX_STARS = 3  # in a part of a pattern between slashes, and as parts: each is one more power of a path's length
_STARS = re.compile(r"(?<!\\)\*{3,}")  # git reads them as two
_DIRECTORY_GROUP = "ps_d"  # pathspec's group: the slash after the part of a path that a pattern names


class _Rule(NamedTuple):
    """Line of an ignore file."""

    pattern: re.Pattern[str]
    ignores: bool

    def names(self, path: str) -> bool:
        """Return whether the line names this path itself, not only a folder above it."""
        for found in self.pattern.finditer(path):
            if _DIRECTORY_GROUP in self.pattern.groupindex and (end := found.end(_DIRECTORY_GROUP)) != -1:
                is_whole = end == len(path)
            else:
                is_whole = found.end() < len(path) or not found[0].endswith("/")  # `x/**` names the contents of x
            if is_whole:
                return True
        return False


_ALL = (_Rule(re.compile("."), True),)


class IgnoreRules:
    """The rules below one root. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        self._above = root.relative_to(self._top).parts
        self._rules: dict[tuple[str, str], tuple[_Rule, ...]] = {}

    def ignored(self, name: str, folder: bool = False) -> bool:
        """Return whether a path below the root, or a folder above it, is ignored."""
        return bool(self.ignored_by(name, folder))

    def ignored_by(self, name: str, folder: bool = False) -> str:
        """Return the name of the ignore file that ignores the path, our own before git's; "" if none does."""
        parts = (*self._above, *name.split("/"))
        first = len(self._above) + 1
        kinds = {self._verdict(parts[:end], folder or end < len(parts)) for end in range(first, len(parts) + 1)}
        return next((kind for kind in IGNORE_FILES if kind in kinds), "")

    def ignored_entry(self, name: str, folder: bool = False) -> bool:
        """Return whether a path is ignored whose folder is known not to be."""
        return bool(self._verdict((*self._above, *name.split("/")), folder))

    def forget(self) -> None:
        """Read the files again when they are next needed."""
        self._rules = {}

    def _verdict(self, parts: tuple[str, ...], folder: bool) -> str:
        """Return the name of the ignore file that ignores the path, or ""; the last rule of the deepest file counts."""
        end = "/" if folder else ""
        for kind in IGNORE_FILES:
            for depth in range(len(parts) - 1, -1, -1):
                if rules := self._read("/".join(parts[:depth]), kind):
                    path = "/".join(parts[depth:]) + end
                    if rule := next((one for one in rules if one.names(path)), None):
                        return kind if rule.ignores else ""
        return ""

    def _read(self, folder: str, kind: str) -> tuple[_Rule, ...]:
        rules = self._rules  # `forget` replaces it: rules read meanwhile are not kept
        if (folder, kind) not in rules:
            rules[folder, kind] = _rules_of(str(self._top), f"{folder}/{kind}" if folder else kind)
        return rules[folder, kind]


def _rules_of(top: str, name: str) -> tuple[_Rule, ...]:
    if read_signature(f"{top}/{name}") is None:
        return ()  # git does not follow a link either
    data = read_bytes(top, name)
    if data is None:
        return _ALL
    rules = []
    for line in data.decode("utf-8-sig", "surrogateescape").split("\n"):
        try:
            pattern = GitIgnoreSpecPattern(_bounded(line.removesuffix("\r")))
        except ValueError:
            continue  # no pattern; git leaves it out too
        if pattern.regex is not None and pattern.include is not None:
            rules.append(_Rule(pattern.regex, pattern.include))
    return tuple(reversed(rules))


def _bounded(line: str) -> str:
    """Return a line with few enough stars to match fast; one with more becomes a wider pattern."""
    line = _STARS.sub("**", line)
    segments = line.split("/")
    if segments.count("**") <= MAX_STARS and all(len(re.findall(r"\*+", one)) <= MAX_STARS for one in segments):
        return line
    return "" if line.startswith("!") else line[: line.index("*")] + "*"
