"""Find the parts of an answer that may change files, in order: fences, diffs, and search/replace blocks.

Not by a Markdown parser: a diff or a search/replace block may contain a line that looks like the end of its fence.
"""

import re
from dataclasses import dataclass

from localdflash.chat import naming, patches
from localdflash.chat.patches import FilePatch

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`]*)$")
_SEARCH = re.compile(r"<{5,9} ?SEARCH>?\s*$")
_MIDDLE = re.compile(r"={5,9}\s*$")
_REPLACE = re.compile(r">{5,9} ?REPLACE\s*$")
_THOUGHT_END = re.compile(r"</think>[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fence:
    """Code block. `name`: the file that the block names, or "". `labelled`: whether its first line names the file."""

    info: str
    lines: tuple[str, ...]
    name: str
    labelled: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class SearchReplace:
    """Search/replace block."""

    name: str
    search: tuple[str, ...]
    replace: tuple[str, ...]
    problem: str = ""


AnswerBlock = Fence | SearchReplace | FilePatch


def find_blocks(answer: str) -> list[AnswerBlock]:
    """Return the blocks of an answer, without those in its thoughts."""
    if end := _THOUGHT_END.search(answer):
        answer = answer[end.end() :]
    elif answer.lstrip().startswith("<think>"):
        return []
    return _BlockReader(answer).read()


class _BlockReader:
    """Single pass over the lines of an answer."""

    def __init__(self, text: str) -> None:
        self._lines = [line.removesuffix("\r") for line in text.split("\n")]
        self._at = 0
        self._found: list[AnswerBlock] = []

    def read(self) -> list[AnswerBlock]:
        while self._at < len(self._lines):
            if fence := _FENCE.match(self._lines[self._at]):
                self._fence(fence)
            elif not self._marked(len(self._lines)):
                self._at += 1
        return self._found

    def _marked(self, end: int) -> bool:
        """Read the diff or search/replace block that begins at this line; return False if none does."""
        if _SEARCH.match(self._lines[self._at]):
            self._found.append(self._exchange())
        elif patches.is_diff_start(self._lines, self._at):
            patch, self._at = patches.read_file_patch(self._lines, self._at, end)
            self._found.append(patch)
        else:
            return False
        return True

    def _fence(self, opening: re.Match[str]) -> None:
        indent, ticks, info = opening.groups()
        first = self._at + 1
        closing = re.compile(rf"[ \t]{{0,{len(indent) + 3}}}{re.escape(ticks[0])}{{{len(ticks)},}}[ \t]*$")
        end = next((at for at in range(first, len(self._lines)) if closing.match(self._lines[at])), len(self._lines))
        inside = [line[len(indent) :] if not line[: len(indent)].strip() else line for line in self._lines[first:end]]
        self._lines[first:end] = inside
        name = naming.path_in_info(info) or naming.path_above(self._above(), info)
        before = len(self._found)
        self._at = first
        texts = [at for at, line in enumerate(inside) if line.strip()]
        marked = naming.is_diff(info) or any(
            _SEARCH.match(inside[at]) for at in texts[:2]
        )  # else code, with marks as text
        marked = marked or (bool(texts) and patches.is_diff_start(inside, texts[0]))
        while self._at < end and marked:
            if not self._marked(end):
                self._at += 1
        if len(self._found) > before:  # the mark at the end may be further down than it seemed
            after = next((at for at in range(self._at, len(self._lines)) if self._lines[at].strip()), self._at)
            ends = after < len(self._lines) and closing.match(self._lines[after]) and after >= end
            self._at = after + 1 if ends else self._at
            return
        self._at = end + 1
        self._found.append(self._plain(info, inside, name, end))

    def _plain(self, info: str, inside: list[str], name: str, end: int) -> AnswerBlock:
        closed = end < len(self._lines)
        if naming.is_diff(info):  # without the names of a file
            hunks, _, problem = patches.read_hunks([*inside, "```"], 0, len(inside))
            return FilePatch(name, name, hunks, problem)
        in_comment = naming.path_in_comment(inside[0]) if inside else ""
        labelled = bool(in_comment) and name in ("", in_comment)
        return Fence(info, tuple(inside), name or in_comment, labelled, closed)

    def _above(self) -> str:
        """Return the line above a fence, across one empty line."""
        above = [line for line in self._lines[max(self._at - 2, 0) : self._at] if line.strip()]
        return above[-1] if above else ""

    def _exchange(self) -> SearchReplace:
        name = self._exchange_name()
        middle = self._next(_MIDDLE, self._at + 1)
        end = self._next(_REPLACE, middle + 1)
        if end >= len(self._lines):
            self._at = len(self._lines)
            return SearchReplace(name, (), (), "is cut short: the answer ends inside it")
        search, replace = self._lines[self._at + 1 : middle], self._lines[middle + 1 : end]
        self._at = end + 1
        return SearchReplace(name, tuple(search), tuple(replace))

    def _next(self, mark: re.Pattern[str], at: int) -> int:
        return next((line for line in range(at, len(self._lines)) if mark.match(self._lines[line])), len(self._lines))

    def _exchange_name(self) -> str:
        """Return the file named in the lines above, the fence's included; else that of the previous block."""
        for line in reversed(self._lines[max(self._at - 4, 0) : self._at]):
            fence = _FENCE.match(line)
            named = (
                naming.path_in_info(fence[3]) if fence else naming.path_above(line, "") or naming.path_in_comment(line)
            )
            if named:
                return named
            if line.strip() and not fence:
                break
        last = self._found[-1] if self._found else None
        return last.name if isinstance(last, SearchReplace) else ""
