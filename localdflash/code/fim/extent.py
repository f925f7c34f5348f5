"""Extent of a completion by the code around the cursor: to the end of the line, the statement or the block.

`x = f|` goes to the end of the statement, `def f(a):|` and an empty line to the end of the block. `x = |(a, b)` ends
with its line, because more than closing brackets follow, and so does a completion inside a string or a comment.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from localdflash.code.fim.brackets import CLOSERS, Brackets, Opener
from localdflash.text import syntax

Mode = Literal["auto", "line", "lines"]
ExtentKind = Literal["line", "statement", "block"]

MAX_BEFORE_CHARS, MAX_AFTER_CHARS = 4000, 3000
LINES_ABOVE, LINES_BELOW = 8, 3  # that an answer must not repeat
_CLOSING = re.compile(r"[\s)\]}\"'`;:,]*")
_CLOSERS = re.compile(r"[)\]}]+")
_OPENING = {
    "python": re.compile(r":\s*(#.*)?$"),
    "lua": re.compile(r"(\b(then|do|else|repeat)|\bfunction\b.*\))\s*$"),
    "": re.compile(r"[:{]\s*$"),
}
_BRACES = re.compile(r"\{\s*$")
_WORDS = re.compile(r"\w{2,}")
_BEGINS = re.compile(  # a line that is rarely inside a string
    r"^(?:(?:async )?def |class \w+[(:{ ]|@\w|import \w+$|from \S+ import |fn |func |function |pub |export |impl |"
    r"struct |#include|static |const |local |public |package )",
    re.MULTILINE,
)
_BEGINS_INSIDE = re.compile(r"^[ \t]+(?:async )?def \w+\(|^[ \t]+class \w+[(:]", re.MULTILINE)


@dataclass(frozen=True)
class Extent:
    """Surroundings that end a completion."""

    kind: ExtentKind
    language: str
    line: str  # of the cursor, up to the cursor
    rest: str  # of that line
    brackets: Brackets  # at the cursor
    open_before: int  # number of brackets that earlier lines left open
    unclosed_after: frozenset[int]  # indices of open brackets that the text after the cursor does not close
    closers_below: str  # closing brackets below that the cursor's line still has to open
    begins_in_string: bool  # the line begins in a string or a comment
    opens_block: bool  # the last line with code before the cursor begins a block
    above: Sequence[str]
    below: Sequence[str]

    @property
    def indent(self) -> int:
        """Return the indentation of the cursor's line, in characters."""
        return indent_of(self.line)

    @property
    def missing_closers(self) -> str:
        """Return the closers of the innermost brackets that other lines opened and nothing closes."""
        first = self.open_before
        while first and first - 1 in self.unclosed_after:
            first -= 1
        return "".join(one.closer for one in reversed(self.brackets.stack[first : self.open_before]))

    def opens_for_closers_below(self, stack: Sequence[Opener]) -> bool:
        """Return whether the innermost open brackets match the closing brackets below."""
        innermost = [one.closer for one in reversed(stack)][: len(self.closers_below)]
        return bool(self.closers_below) and innermost == list(self.closers_below)


def find_extent(language: str, before: str, after: str, mode: Mode = "auto") -> Extent:
    """Return the extent of a completion between two texts with LF line ends."""
    before = _window(before)
    line, (rest, _, later) = before.rpartition("\n")[2], after[:MAX_AFTER_CHARS].partition("\n")
    brackets = Brackets(language)
    brackets.feed(_short(before[: len(before) - len(line)]))
    open_before, in_string = len(brackets.stack), bool(brackets.inside)
    for char in _short(line):
        brackets.feed(char)
        open_before = min(open_before, len(brackets.stack))
    if not _is_text(language, before, brackets):
        brackets.inside, in_string = "", False
    above = [one for one in before.split("\n")[:-1] if one.strip()][-LINES_ABOVE:]
    below = [one.rstrip() for one in later.split("\n") if one.strip()][:LINES_BELOW]
    last = line if line.strip() or not above else above[-1]
    opens = opens_block(language, last) and (not line.strip() or not rest.strip())
    kind = _kind(mode, line, rest, brackets, opens)
    unclosed = _find_unclosed(language, brackets, after, open_before)
    closers = _find_closers_below(brackets, indent_of(line), rest, later)
    return Extent(kind, language, line, rest, brackets, open_before, unclosed, closers, in_string, opens, above, below)


def opens_block(language: str, line: str) -> bool:
    """Return whether a line begins a block."""
    return bool(_OPENING.get(language, _BRACES).search(line))


def indent_of(line: str) -> int:
    """Return the number of blanks that a line begins with."""
    return len(line) - len(line.lstrip(" \t"))


def _kind(mode: Mode, line: str, rest: str, brackets: Brackets, opens: bool) -> ExtentKind:
    if mode == "line":
        return "line"
    if mode == "lines":
        return "block"
    if brackets.inside or not _CLOSING.fullmatch(rest):
        return "line"
    return "block" if opens or not (line.strip() or rest.strip()) else "statement"


def _short(text: str) -> str:
    """Return a text with the same brackets, quotes and indentation in a third of the characters."""
    return _WORDS.sub("a", text)


def _window(before: str) -> str:
    """Return the last lines, starting at one that is probably not inside a string."""
    if len(before) <= MAX_BEFORE_CHARS:
        return before
    for begins, factor in ((_BEGINS, 1), (_BEGINS, 2), (_BEGINS_INSIDE, 1)):
        if found := begins.search(before, max(len(before) - factor * MAX_BEFORE_CHARS, 0)):
            return before[found.start() :]
    return before[-MAX_BEFORE_CHARS:]


def _is_text(language: str, before: str, brackets: Brackets) -> bool:
    """Return whether the cursor is in a string or a comment. If grammar and brackets disagree, the grammar is right."""
    if not brackets.inside:
        return False
    tree = syntax.parse(language, before + brackets.inside)  # without its end a string is not read as one
    if tree is None:
        return True
    end = len(before.encode("utf-8", "replace"))
    node = tree.root_node.descendant_for_byte_range(max(end - 1, 0), end)
    while node:
        if re.search("string|comment|char|ERROR|template", node.type):
            return True
        node = node.parent
    return False


def _find_closers_below(brackets: Brackets, indent: int, rest: str, later: str) -> str:
    """Return the closers that begin a line below with the cursor's indentation, if no open bracket awaits them."""
    outer = next((line for line in later.split("\n") if line.strip() and indent_of(line) <= indent), "")
    found = _CLOSERS.match(outer, indent)
    if not found or indent_of(outer) < indent:
        return ""
    whole_line = deepcopy(brackets)
    whole_line.feed(rest)
    closes_one = any(one.indent == indent and one.closer == found[0][0] for one in whole_line.stack)
    return "" if closes_one else found[0]


def _find_unclosed(language: str, brackets: Brackets, after: str, open_before: int) -> frozenset[int]:
    """Return the brackets that the text after the cursor leaves open, by its closers and their lines' indentation."""
    stack, later = brackets.stack, Brackets(language)
    later.inside = brackets.inside
    left = set(range(len(stack)))
    indent, first, blank = 0, True, True
    for char in _short(after[:MAX_AFTER_CHARS]):
        if char == "\n":
            indent, first, blank = 0, False, True
        elif blank and char in " \t":
            indent += 1
        else:
            blank = False
            if char in CLOSERS and not later.inside and not later.stack:
                fitting = [i for i in left if stack[i].closer == char and (first or stack[i].indent <= indent)]
                left -= {max(fitting, default=-1)}
        later.feed(char)
    return frozenset(left if len(after) <= MAX_AFTER_CHARS else left - set(range(open_before)))
