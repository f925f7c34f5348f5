"""Texts that a replay types: parts of files, or the lines that a commit added.

Keys are counted for an editor with auto-indent: Enter also inserts the next line's indentation.
"""

import io
import random
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path

from localdflash.base.errors import UsageError
from localdflash.text.sanitize import printable

MAX_FILE_CHARS = 1_000_000
END_OF_FILE_SHARE = 0.2  # share of the files of which the last lines are typed
MIN_BLOCK_LINES = 3
_NEWLINE_OR_INDENT = re.compile(r"\n?[ \t]+(?=\S)|\n")


@dataclass(frozen=True)
class TypedPassage:
    """Passage to type: at `start` of the current text, remove `removed` characters, then type."""

    start: int
    removed: int
    text: str


@dataclass(frozen=True)
class TypingJob:
    """Job for one file: its name in the workspace, its text before, and the passages to type, in order."""

    name: str
    text: str
    passages: tuple[TypedPassage, ...]


def next_key(at_line_start: bool, remaining_text: str) -> str:
    """Return the characters that the next key inserts."""
    if remaining_text[0] == "\n" or at_line_start:
        match = _NEWLINE_OR_INDENT.match(remaining_text)
        return match[0] if match else remaining_text[0]
    return remaining_text[0]


def _key_ends(text: str, at_line_start: bool) -> Iterator[int]:
    end = 0
    while end < len(text):
        end += len(next_key(text[end - 1] == "\n" if end else at_line_start, text[end:]))
        yield end


def count_keys(text: str, at_line_start: bool) -> int:
    """Return the number of keys that a text takes without suggestions."""
    return sum(1 for _ in _key_ends(text, at_line_start))


def first_lines(text: str, max_keys: int) -> str:
    """Return the beginning of a text that `max_keys` keys insert, completed to the end of its last line."""
    typed_length = next(islice(_key_ends(text, at_line_start=True), max_keys - 1, None), len(text))
    end = text.find("\n", typed_length)
    return text if end < 0 else text[:end]


def from_file(name: str, text: str, max_keys: int, seed: int) -> TypingJob:
    """Return a job for random lines of an indented block or of the file's end: about `max_keys` keys, or one line."""
    choose = random.Random(f"{seed} {name}")
    lines = text.rstrip("\n").split("\n")
    if choose.random() < END_OF_FILE_SHARE:
        first = next((n for n in range(len(lines)) if _count_line_keys(lines[n:]) <= max_keys), len(lines) - 1)
        return _job_of_lines(name, lines, min(max(first, 1), len(lines) - 1), len(lines))
    blocks = [(start, end) for start, end in _blocks(lines) if end - start >= MIN_BLOCK_LINES]
    first, last = choose.choice(blocks or [(0, len(lines))])
    first = choose.randrange(first, max(last - MIN_BLOCK_LINES, first) + 1)
    return _job_of_lines(name, lines, first, _fitting_end(lines, first, last, max_keys))


def from_line(name: str, text: str, number: int, max_keys: int) -> TypingJob:
    """Return a job for the lines from `number` (first: 1) that need about `max_keys` keys; UsageError without it."""
    lines = text.rstrip("\n").split("\n")
    if not 1 <= number <= len(lines):
        raise UsageError(f"{name}: it has {len(lines)} lines, and no line {number}")
    return _job_of_lines(name, lines, number - 1, _fitting_end(lines, number - 1, len(lines), max_keys))


def _job_of_lines(name: str, lines: Sequence[str], first: int, last: int) -> TypingJob:
    """Return a job that types `lines[first:last]` into the file without them, from the end of the previous line."""
    typed = "\n".join(lines[first:last])
    before, after = "\n".join(lines[:first]), "".join(f"\n{line}" for line in lines[last:]) + "\n"
    if first:
        typed = f"\n{typed}"
    return TypingJob(name, before + after, (TypedPassage(len(before), 0, typed),))


def _fitting_end(lines: Sequence[str], first: int, last: int, max_keys: int) -> int:
    """Return the end index of the lines from `first` that need about `max_keys` keys, one line or more."""
    end = first + 1
    while end < last and _count_line_keys(lines[first : end + 1]) <= max_keys:
        end += 1
    while end > first + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def _count_line_keys(lines: Sequence[str]) -> int:
    return sum(len(line.strip()) + 1 for line in lines)


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of the indented block below each line that has one."""
    for at, line in enumerate(lines[:-1]):
        end = at + 1
        while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > _indent(line)):
            end += 1
        while not lines[end - 1].strip() and end > at + 1:
            end -= 1
        if line.strip() and end > at + 1:
            yield at + 1, end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def read(path: Path) -> str:
    """Return a file's text with LF as line ends; UsageError if it is blank, too long or not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a UTF-8 text file") from None
    if not text.strip() or len(text) > MAX_FILE_CHARS:
        raise UsageError(f"{path}: {len(text)} characters; expected 1 to {MAX_FILE_CHARS}, not all blank")
    return text


class Commit:
    """Commit of the repository that a folder is in, against its first parent or the empty tree."""

    def __init__(self, revision: str, folder: Path) -> None:
        self._folder = folder
        self._folder = Path(self._git("rev-parse", "--show-toplevel").rstrip("\n"))
        self.id = self._git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
        parents = self._git("rev-list", "--parents", "-n", "1", self.id).split()[1:]
        self._parent = parents[0] if parents else self._git("hash-object", "-t", "tree", "/dev/null").strip()

    def jobs(self) -> list[TypingJob]:
        """Return a job for each text file that the commit added lines to."""
        arguments = ("-r", "-z", "--no-renames", "--diff-filter=AM", "--name-status", self._parent, self.id)
        fields = self._git("diff-tree", *arguments).split("\0")
        jobs = (self._job(name, kind) for kind, name in zip(fields[::2], fields[1::2], strict=False))
        return [job for job in jobs if job and any(passage.text for passage in job.passages)]

    def unpack(self, into: Path) -> None:
        """Write the repository's files as they were before the commit into a folder, without links out of it."""
        archive = self._run("archive", "--format=tar", self._parent)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(into, filter=_inside_only)

    def _job(self, name: str, kind: str) -> TypingJob | None:
        before = "" if kind == "A" else self._text(self._parent, name)
        after = self._text(self.id, name)
        if before is None or after is None:
            return None
        return TypingJob(name, before, tuple(additions(before, after)))

    def _text(self, tree: str, name: str) -> str | None:
        """Return the text of a file in a tree; None for a file that is binary or too long."""
        if self._git("cat-file", "-t", f"{tree}:{name}").strip() != "blob":
            return None
        try:
            text = self._run("cat-file", "blob", f"{tree}:{name}").decode("utf-8-sig")
        except UnicodeDecodeError:
            return None
        return None if "\0" in text or len(text) > MAX_FILE_CHARS else text.replace("\r\n", "\n")

    def _git(self, *arguments: str) -> str:
        return self._run(*arguments).decode("utf-8", "surrogateescape")

    def _run(self, *arguments: str) -> bytes:
        command = ["git", "-C", str(self._folder), *arguments]
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
        except FileNotFoundError:
            raise UsageError("--commit needs git, which is not installed") from None
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode("utf-8", "replace").splitlines() or [f"status {error.returncode}"]
            raise UsageError(f"--commit: git {arguments[0]}: {printable(lines[0])}") from None


def _inside_only(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return a member as tarfile's filter "data" does; None for one that the filter refuses, which is skipped."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def additions(before: str, after: str) -> Iterator[TypedPassage]:
    """Yield the passages that turn `before` into `after`, from the top; each first removes the lines it replaces."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    at = 0
    for kind, i, j, k, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        typed = "".join(new[k:end])
        if kind != "equal":
            yield TypedPassage(at, sum(map(len, old[i:j])), typed)
        at += len(typed)
