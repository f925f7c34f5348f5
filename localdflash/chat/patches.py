"""Parse unified diffs with the wrong counts and line numbers that models write, and find the lines that they change."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from localdflash.base.errors import UsageError
from localdflash.chat.file_text import FileText, Splice

NOTHING = "/dev/null"
_HUNK_HEAD = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_GIT = re.compile(r"diff --git (\S+) (\S+)$")
_OTHER_CHANGE = re.compile(r"rename |copy |similarity |old mode |GIT binary patch|Binary files ")
_PREFIXED = re.compile(r"[abciow]/(.+)")
_HUNK_LINE = re.compile(r"\+| +\S|-(?!-- |- ?$)")  # not a file header, nor a mail signature


@dataclass(frozen=True, slots=True)
class PatchHunk:
    """Hunk of a diff. `at`: its stated first line, from 0, or None. Lines have a sign and no line end."""

    at: int | None
    lines: tuple[str, ...]
    old_lacks_newline: bool = False  # the old file's last line has no end
    new_lacks_newline: bool = False

    @property
    def old(self) -> list[str]:
        """Return the lines that must be in the file."""
        return [line[1:] for line in self.lines if line[0] != "+"]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """Diff of one file. The names have no `a/` and `b/`; one may be `NOTHING`. `problem`: why it cannot be applied."""

    old: str
    new: str
    hunks: tuple[PatchHunk, ...] = ()
    problem: str = ""


def is_diff_start(lines: Sequence[str], at: int) -> bool:
    """Return whether a line is the first of a diff with file names."""
    return bool(_GIT.match(lines[at])) or _has_file_names(lines, at)


def read_file_patch(lines: Sequence[str], at: int, end: int) -> tuple[FilePatch, int]:
    """Return the diff of one file that begins at a line, and the line after it; `end` is the end of its fence."""
    old = new = problem = ""
    if git := _GIT.match(lines[at]):
        old, new = _clean_names(git[1], git[2])
        at += 1
        while at < end and lines[at].strip() and not is_diff_start(lines, at):
            problem = problem or ("does more than change lines" if _OTHER_CHANGE.match(lines[at]) else "")
            at += 1
        if at >= end or not _has_file_names(lines, at):
            return FilePatch(old, new, (), problem or "has no lines to change"), at
    old, new = _clean_names(lines[at][4:], lines[at + 1][4:])
    hunks, at, wrong = read_hunks(lines, at + 2, end)
    return FilePatch(old, new, hunks, problem or wrong), at


def read_hunks(lines: Sequence[str], at: int, end: int) -> tuple[tuple[PatchHunk, ...], int, str]:
    """Return the hunks from line `at` to the fence's `end`, the line after them, and the first problem, or ""."""
    hunks: list[PatchHunk] = []
    problem = ""
    while at < len(lines) and (lines[at].startswith("@@") or not hunks):
        head = _HUNK_HEAD.match(lines[at])
        body, at, wrong = _read_body(lines, at + lines[at].startswith("@@"), end, head)
        hunks.append(_make_hunk(head, body))
        problem = problem or wrong
        following = next((later for later in range(at, end) if lines[later].strip()), at)
        at = following if following < len(lines) and lines[following].startswith("@@") else at
    return tuple(hunks), at, problem or ("" if hunks else "has no lines to change")


def find_splices(text: FileText, hunks: Sequence[PatchHunk]) -> tuple[list[Splice], bool | None]:
    """Return the sorted splices, and whether the last line gets an end (None: as before); UsageError if ambiguous."""
    located = []
    for number, hunk in enumerate(hunks, 1):
        try:
            located.append((find_lines(text.lines, hunk.old, hunk.at), hunk))
        except UsageError as error:
            raise UsageError(f"hunk {number} of {len(hunks)} {error}") from None
    located.sort(key=lambda pair: pair[0])
    splices: list[Splice] = []
    final: bool | None = None
    reached = 0
    for start, hunk in located:
        if start < reached:
            raise UsageError(f"two hunks change line {start + 1}")
        splices += _splices_of_hunk(start, hunk)
        reached = start + len(hunk.old)
        if reached == len(text.lines) and hunk.old_lacks_newline != hunk.new_lacks_newline:
            final = hunk.old_lacks_newline
    return splices, final


def find_lines(lines: Sequence[str], old: Sequence[str], at: int | None = None) -> int:
    """Return the only line, from 0, where `old` occurs; UsageError with the reason if that is not exactly one."""
    if not old:
        if lines:
            raise UsageError("has no context lines, so its position is unknown")
        return 0
    for form in (str, str.rstrip):
        needle, haystack = [form(line) for line in old], [form(line) for line in lines]
        if at is not None and haystack[at : at + len(old)] == needle:
            return at
        places = _find_two(haystack, needle)
        if len(places) == 1:
            return places[0]
        if places:
            raise UsageError(f"fits in more than one place: lines {places[0] + 1} and {places[1] + 1}")
    present = {line.strip() for line in lines}
    missing = next((line for line in old if line.strip() not in present), None)
    raise UsageError("fits nowhere" + (f": the file has no line {missing.strip()[:60]!r}" if missing else ""))


def _find_two(lines: Sequence[str], needle: Sequence[str]) -> list[int]:
    """Return the first two occurrences. Searching one string takes linear time, however often a line repeats."""
    text, part = "\n".join(["", *lines, ""]), "\n".join(["", *needle, ""])
    first = text.find(part)
    second = text.find(part, first + 1)
    return [text.count("\n", 0, start) for start in (first, second) if start >= 0]


def _splices_of_hunk(start: int, hunk: PatchHunk) -> list[Splice]:
    """Return the splices of a hunk without its context lines, which stay as the file has them."""
    splices: list[Splice] = []
    at = first = start
    new: list[str] = []
    for line in (*hunk.lines, " "):
        if line[0] == " ":
            if new or at > first:
                splices.append(Splice(first, at, new))
            at += 1
            first, new = at, []
        elif line[0] == "-":
            at += 1
        else:
            new.append(line[1:])
    return splices


def _clean_names(old: str, new: str) -> tuple[str, str]:
    """Return the two names, without times, quotes and git's prefixes."""
    old, new = (_unquote(name.split("\t")[0].strip()) for name in (old, new))
    bare_old, bare_new = (match[1] if (match := _PREFIXED.fullmatch(name)) else "" for name in (old, new))
    if bare_old and (new == NOTHING or bare_old == bare_new):
        return bare_old, bare_new or new
    if bare_new and old == NOTHING:
        return old, bare_new
    return old, new


def _unquote(name: str) -> str:
    """Return a name without git's quoting."""
    if not name.startswith('"'):
        return name
    try:
        return bytes(ast.literal_eval("b" + name)).decode()
    except (ValueError, SyntaxError):
        return name


def _read_body(lines: Sequence[str], at: int, end: int, head: re.Match[str] | None) -> tuple[list[str], int, str]:
    """Return a hunk's lines, the line after it, and the problem with it."""
    if head and (counted := _read_counted_body(lines, at, end, int(head[2] or 1), int(head[4] or 1))):
        return *counted, ""
    body: list[str] = []
    while at < end and not lines[at].startswith("@@") and not is_diff_start(lines, at):
        line = lines[at] or " "
        if line[0] not in " +-\\" and end < len(lines):
            return body, at, f"has a line without a sign: {line[:60]!r}"
        if line[0] not in " +-\\":
            break  # outside of a fence, another line ends the diff
        body.append(line)
        at += 1
    while body and not body[-1].strip():
        body.pop()
    return body, at, "" if body else "has a hunk without lines"


def _read_counted_body(lines: Sequence[str], at: int, end: int, old: int, new: int) -> tuple[list[str], int] | None:
    """Return the lines that the head counts, even past an apparent end of the fence; None if the counts disagree."""
    body: list[str] = []
    while at < len(lines) and (old or new or lines[at].startswith("\\")):
        line = lines[at] or " "
        if line[0] not in " +-\\":
            return None
        old -= line[0] in " -"
        new -= line[0] in " +"
        if old < 0 or new < 0:
            return None
        body.append(line)
        at += 1
    following = next((line for line in lines[at:end] if line.strip() or end == len(lines)), "")
    return None if old or new or _HUNK_LINE.match(following) else (body, at)


def _has_file_names(lines: Sequence[str], at: int) -> bool:
    return at + 2 < len(lines) and lines[at].startswith("--- ") and lines[at + 1].startswith("+++ ")


def _make_hunk(head: re.Match[str] | None, body: Sequence[str]) -> PatchHunk:
    """Return a hunk of these lines; a remark says that the line before it has no end."""
    open_after = {line[0] for line, remark in pairwise(body) if remark[0] == "\\"}
    at = max(int(head[1]) - 1, 0) if head else None
    lines = tuple(line for line in body if line[0] != "\\")
    return PatchHunk(at, lines, bool(open_after & {" ", "-"}), bool(open_after & {" ", "+"}))
