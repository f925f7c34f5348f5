"""Counts of suggestions by language and kind of cursor position, for `localdflash stats`; they stay on this machine.

A language server appends its counts as one line of JSON a minute, so several editors can write one file.
"""

import json
import os
from collections import Counter
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Literal, get_args

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths

UsageEvent = Literal["suggested", "accepted", "kept"]
EVENTS: tuple[UsageEvent, ...] = get_args(UsageEvent)
FLUSH_SECONDS = 60.0
KEPT_SECONDS = 30.0  # an accepted text that is still there after this time counts as kept
MAX_FILE_BYTES = 2_000_000  # a larger file replaces the older file, and a new one is begun


def usage_file() -> Path:
    """Return the file of the counts."""
    return paths.data_folder() / "suggestions.jsonl"


def position_kind(before: str, after: str) -> str:
    """Return the kind of a cursor position by the text before and after the cursor."""
    line, rest = before.rpartition("\n")[2], after.partition("\n")[0]
    return "new line" if not line.strip() else "within a line" if rest.strip(" \t\r)]}\"'`;,:") else "end of a line"


class UsageLog:
    """Counts of one language server; without a path nothing is counted."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: Counter[tuple[str, str, UsageEvent]] = Counter()

    def add(self, language: str, place: str, event: UsageEvent) -> None:
        """Count one event."""
        if self._path:
            self._counts[language or "other", place, event] += 1

    def flush(self) -> None:
        """Append the counts to the file; a failure loses them."""
        if not self._path or not self._counts:
            return
        counts = [[*key, number] for key, number in self._counts.items()]
        line = json.dumps({"day": date.today().isoformat(), "counts": counts}) + "\n"
        self._counts.clear()
        with suppress(OSError, LocaldflashError):
            paths.create_private(self._path.parent)
            if self._path.exists() and self._path.stat().st_size > MAX_FILE_BYTES:
                self._path.replace(_older(self._path))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(line)


def read_usage(path: Path, since: date) -> Counter[tuple[str, str, str]]:
    """Return the counts by language, place and event since a day; lines in another form are skipped."""
    found: Counter[tuple[str, str, str]] = Counter()
    for file in (_older(path), path):
        with suppress(FileNotFoundError):
            for line in file.read_text("utf-8", "replace").splitlines():
                with suppress(ValueError, TypeError, KeyError):
                    entry = json.loads(line)
                    if date.fromisoformat(entry["day"]) >= since:
                        found.update({(str(a), str(b), str(c)): int(number) for a, b, c, number in entry["counts"]})
    return found


def _older(path: Path) -> Path:
    return path.with_suffix(".old.jsonl")
