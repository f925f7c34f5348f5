"""Ignore files: `.gitignore` in every folder, as git reads it, and `.localdflashignore`, which overrides it.

An ignore file that is unreadable or larger than 1 MB makes its whole folder ignored.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from localdflash.code.context.files import read_bytes, read_signature

OWN_IGNORE_FILE = ".localdflashignore"
IGNORE_FILES = (OWN_IGNORE_FILE, ".gitignore")
MAX_STARS = 3  # `*` in a segment, and `**` segments, of a pattern: matching takes time O(path length ** stars)
_STARS = re.compile(r"(?<!\\)\*{3,}")  # git reads three or more as two
_DIRECTORY_GROUP = "ps_d"  # pathspec's regex group: the slash after a matched folder


class _Rule(NamedTuple):
    """Line of an ignore file. `ignores` is False for a line with `!`."""

    pattern: re.Pattern[str]
    ignores: bool

    def matches_itself(self, path: str) -> bool:
        """Return whether the pattern matches this path itself, not only a folder above it."""
        for match in self.pattern.finditer(path):
            if _DIRECTORY_GROUP in self.pattern.groupindex and (end := match.end(_DIRECTORY_GROUP)) != -1:
                is_whole = end == len(path)
            else:
                is_whole = match.end() < len(path) or not match[0].endswith("/")  # `x/**`: only the contents of x
            if is_whole:
                return True
        return False


_IGNORE_ALL = (_Rule(re.compile("."), True),)


class IgnoreRules:
    """Ignore rules that apply below one root, read when needed. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._repository = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        self._above = root.relative_to(self._repository).parts
        self._rules: dict[tuple[str, str], tuple[_Rule, ...]] = {}

    def ignored(self, name: str, folder: bool = False) -> bool:
        """Return whether a path below the root, or a folder above it, is ignored."""
        return bool(self.ignored_by(name, folder))

    def ignored_by(self, name: str, folder: bool = False) -> str:
        """Return the name of the ignore file that ignores the path, our own before git's; "" if none does."""
        parts = (*self._above, *name.split("/"))
        first = len(self._above) + 1
        kinds = {self._ignoring_file(parts[:end], folder or end < len(parts)) for end in range(first, len(parts) + 1)}
        return next((kind for kind in IGNORE_FILES if kind in kinds), "")

    def ignored_entry(self, name: str, folder: bool = False) -> bool:
        """Return whether a path is ignored, if its folder is known not to be ignored."""
        return bool(self._ignoring_file((*self._above, *name.split("/")), folder))

    def forget(self) -> None:
        """Forget all rules, so that ignore files are read again when next needed."""
        self._rules = {}

    def _ignoring_file(self, parts: tuple[str, ...], folder: bool) -> str:
        """Return the name of the ignore file that ignores a path, or ""; the last rule of the deepest file wins."""
        end = "/" if folder else ""
        for kind in IGNORE_FILES:
            for depth in range(len(parts) - 1, -1, -1):
                if rules := self._read("/".join(parts[:depth]), kind):
                    path = "/".join(parts[depth:]) + end
                    if rule := next((one for one in rules if one.matches_itself(path)), None):
                        return kind if rule.ignores else ""
        return ""

    def _read(self, folder: str, kind: str) -> tuple[_Rule, ...]:
        rules = self._rules  # `forget` replaces the dictionary: rules read meanwhile are not kept
        if (folder, kind) not in rules:
            rules[folder, kind] = _read_rules(str(self._repository), f"{folder}/{kind}" if folder else kind)
        return rules[folder, kind]


def _read_rules(top: str, name: str) -> tuple[_Rule, ...]:
    if read_signature(f"{top}/{name}") is None:
        return ()  # git does not follow a link either
    data = read_bytes(top, name)
    if data is None:
        return _IGNORE_ALL
    rules = []
    for line in data.decode("utf-8-sig", "surrogateescape").split("\n"):
        try:
            pattern = GitIgnoreSpecPattern(_limit_stars(line.removesuffix("\r")))
        except ValueError:
            continue  # not a valid pattern: git skips it too
        if pattern.regex is not None and pattern.include is not None:
            rules.append(_Rule(pattern.regex, pattern.include))
    return tuple(reversed(rules))


def _limit_stars(line: str) -> str:
    """Return the pattern, cut at its first star if it has too many: it then matches fast, and ignores more."""
    line = _STARS.sub("**", line)
    segments = line.split("/")
    if segments.count("**") <= MAX_STARS and all(len(re.findall(r"\*+", one)) <= MAX_STARS for one in segments):
        return line
    return "" if line.startswith("!") else line[: line.index("*")] + "*"
