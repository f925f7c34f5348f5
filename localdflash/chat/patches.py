"""Parse unified diffs, even with the wrong counts and line numbers that models write, and find the lines to change."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from localdflash.base.errors import UsageError
from localdflash.chat.file_text import FileText, Splice

NOTHING = "/dev/null"  # a diff's name for a file that does not exist
_HUNK_HEAD = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_GIT = re.compile(r"diff --git (\S+) (\S+)$")
_OTHER_CHANGE = re.compile(r"rename |copy |similarity |old mode |GIT binary patch|Binary files ")
_PREFIXED = re.compile(r"[abciow]/(.+)")
_HUNK_LINE = re.compile(r"\+| +\S|-(?!-- |- ?$)")  # but no file header or mail signature


@dataclass(frozen=True, slots=True)
class PatchHunk:
    """Hunk of a diff. `at`: first line, from 0, according to its head; None: not given. Lines start with their sign."""

    at: int | None
    lines: tuple[str, ...]
    old_lacks_newline: bool = False  # the hunk says that the old file does not end with a newline
    new_lacks_newline: bool = False

    @property
    def old(self) -> list[str]:
        """Return the lines that must be in the file."""
        return [line[1:] for line in self.lines if line[0] != "+"]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """Diff of one file. The names lack `a/` and `b/`; one may be `NOTHING`. `problem`: why it cannot be applied."""

    old: str
    new: str
    hunks: tuple[PatchHunk, ...] = ()
    problem: str = ""


def is_diff_start(lines: Sequence[str], at: int) -> bool:
    """Return whether a diff with file names begins at line `at`."""
    return bool(_GIT.match(lines[at])) or _has_file_names(lines, at)


def read_file_patch(lines: Sequence[str], at: int, end: int) -> tuple[FilePatch, int]:
    """Return the diff of one file that begins at line `at`, and the index after it; `end`: end of the code fence."""
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
    """Return the hunks from line `at` on, the index after them, and the first problem or ""; `end`: the fence's end."""
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
    """Return arguments of `FileText.with_splices`: the sorted splices, `final_newline`. UsageError if ambiguous."""
    located = []
    for number, hunk in enumerate(hunks, 1):
        try:
            located.append((find_lines(text.lines, hunk.old, hunk.at), hunk))
        except UsageError as error:
            raise UsageError(f"hunk {number} of {len(hunks)} {error}") from None
    located.sort(key=lambda pair: pair[0])
    splices: list[Splice] = []
    final_newline: bool | None = None
    reached = 0
    for start, hunk in located:
        if start < reached:
            raise UsageError(f"two hunks change line {start + 1}")
        splices += _splices_of_hunk(start, hunk)
        reached = start + len(hunk.old)
        if reached == len(text.lines) and hunk.old_lacks_newline != hunk.new_lacks_newline:
            final_newline = hunk.old_lacks_newline
    return splices, final_newline


def find_lines(lines: Sequence[str], old: Sequence[str], at: int | None = None) -> int:
    """Return the index where `old` occurs, at `at` or else once; UsageError with the reason if it does not."""
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
    """Return the first two occurrences of `needle`. They are searched in one string, which takes linear time."""
    text, part = "\n".join(["", *lines, ""]), "\n".join(["", *needle, ""])
    first = text.find(part)
    second = text.find(part, first + 1)
    return [text.count("\n", 0, start) for start in (first, second) if start >= 0]


def _splices_of_hunk(start: int, hunk: PatchHunk) -> list[Splice]:
    """Return the splices of a hunk; its context lines are left out, so that the file's lines stay."""
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
    """Return both file names of a diff without timestamps, quotes and git's prefixes."""
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
    """Return a hunk's lines, the index after it, and the problem with it, or ""."""
    if head and (counted := _read_counted_body(lines, at, end, int(head[2] or 1), int(head[4] or 1))):
        return *counted, ""
    body: list[str] = []
    while at < end and not lines[at].startswith("@@") and not is_diff_start(lines, at):
        line = lines[at] or " "
        if line[0] not in " +-\\" and end < len(lines):
            return body, at, f"has a line without a sign: {line[:60]!r}"
        if line[0] not in " +-\\":
            break  # not in a fence: text after the diff ends it
        body.append(line)
        at += 1
    while body and not body[-1].strip():
        body.pop()
    return body, at, "" if body else "has a hunk without lines"


def _read_counted_body(lines: Sequence[str], at: int, end: int, old: int, new: int) -> tuple[list[str], int] | None:
    """Return as many lines as the head counts, even beyond `end`, and the index after them; None if it is wrong."""
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
    """Return a hunk of these lines. A line that starts with a backslash says that the line before it has no end."""
    unended = {line[0] for line, remark in pairwise(body) if remark[0] == "\\"}  # signs
    at = max(int(head[1]) - 1, 0) if head else None
    lines = tuple(line for line in body if line[0] != "\\")
    return PatchHunk(at, lines, bool(unended & {" ", "-"}), bool(unended & {" ", "+"}))
