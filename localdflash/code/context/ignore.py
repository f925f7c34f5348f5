"""Ignore files: `.gitignore` at every level as git reads it, and `.localdflashignore`, which has the last word.

Rules of the folders above the root count too, up to the repository's top. They are kept in memory until `forget`. A
file of rules that may not be read, or is larger than a megabyte, ignores all of its folder: better too little than what
somebody wanted kept out.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from localdflash.code.context.files import read_bytes, signature

OWN = ".localdflashignore"
IGNORE_FILES = (OWN, ".gitignore")
MOST_STARS = 3  # in a part of a pattern between slashes, and as parts: each is one more power of a path's length
_STARS = re.compile(r"(?<!\\)\*{3,}")  # git reads them as two
_FOLDERS_END = "ps_d"  # pathspec's group: the slash after the part of a path that a pattern names


class _Rule(NamedTuple):
    """One line of a file of rules."""

    pattern: re.Pattern[str]
    ignores: bool

    def names(self, path: str) -> bool:
        """Whether the line names this path itself: what lies in a folder is ignored with it, but cannot be
        re-included.
        """
        return any(self._is_whole(found, path) for found in self.pattern.finditer(path))

    def _is_whole(self, found: re.Match[str], path: str) -> bool:
        if _FOLDERS_END in self.pattern.groupindex and (end := found.end(_FOLDERS_END)) != -1:
            return end == len(path)
        return found.end() < len(path) or not found[0].endswith("/")  # `x/**` is what lies in x, not x


_ALL = (_Rule(re.compile("."), True),)


class IgnoreRules:
    """The rules that hold below one root. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self._top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        self._above = root.relative_to(self._top).parts
        self._rules: dict[tuple[str, str], tuple[_Rule, ...]] = {}

    def ignored(self, name: str, folder: bool = False) -> bool:
        """Whether rules leave out a path below the root, or a folder that it lies in."""
        return bool(self.ignored_by(name, folder))

    def ignored_by(self, name: str, folder: bool = False) -> str:
        """The kind of file of rules that leaves it out, our own before git's; "" where none does."""
        parts = (*self._above, *name.split("/"))
        first = len(self._above) + 1
        kinds = {self._verdict(parts[:end], folder or end < len(parts)) for end in range(first, len(parts) + 1)}
        return next((kind for kind in IGNORE_FILES if kind in kinds), "")

    def ignored_entry(self, name: str, folder: bool = False) -> bool:
        """Whether rules leave out a path whose folder is known not to be ignored."""
        return bool(self._verdict((*self._above, *name.split("/")), folder))

    def forget(self) -> None:
        """Read the files again when they are next needed."""
        self._rules = {}

    def _verdict(self, parts: tuple[str, ...], folder: bool) -> str:
        """The kind of the file whose rule ignores it, or "". That is the last matching rule of the deepest file of
        rules that has one; our own files are asked first.
        """
        end = "/" if folder else ""
        for kind in IGNORE_FILES:
            for depth in range(len(parts) - 1, -1, -1):
                if rules := self._read("/".join(parts[:depth]), kind):
                    path = "/".join(parts[depth:]) + end
                    if rule := next((one for one in rules if one.names(path)), None):
                        return kind if rule.ignores else ""
        return ""

    def _read(self, folder: str, kind: str) -> tuple[_Rule, ...]:
        rules = self._rules  # forget() puts another in its place: what is read meanwhile is not kept
        if (folder, kind) not in rules:
            rules[folder, kind] = _rules_of(str(self._top), f"{folder}/{kind}" if folder else kind)
        return rules[folder, kind]


def _rules_of(top: str, name: str) -> tuple[_Rule, ...]:
    if signature(f"{top}/{name}") is None:
        return ()  # nothing, or no plain file: git does not follow a link here either
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
    """A line with few enough stars to be matched fast, whoever wrote it; one with more is replaced by a wider one."""
    line = _STARS.sub("**", line)
    segments = line.split("/")
    if segments.count("**") <= MOST_STARS and all(len(re.findall(r"\*+", one)) <= MOST_STARS for one in segments):
        return line
    return "" if line.startswith("!") else line[: line.index("*")] + "*"
