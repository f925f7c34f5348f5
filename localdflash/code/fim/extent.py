"""Decide from the code around the cursor how far a completion goes: to the end of the line, statement or block.

`|` is the cursor. After `x = f|` a completion goes to the end of the statement; after `def f(a):|` and on an empty line
to the end of the block. It ends with the line in strings and comments, and before code, as in `x = |(a, b)`. A
requested completion goes as far as the model writes, except in strings and comments.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from localdflash.code.fim.brackets import CLOSERS, Brackets, Opener
from localdflash.text import syntax

Mode = Literal["auto", "line", "lines", "open"]  # requested extent; "lines": the block; "open": as the model ends it
ExtentKind = Literal["line", "statement", "block", "open"]

MAX_BEFORE_CHARS, MAX_AFTER_CHARS = 4000, 3000  # characters around the cursor that are searched for brackets
LINES_ABOVE, LINES_BELOW = 8, 3  # non-empty lines that an answer must not repeat
_CLOSING = re.compile(r"[\s)\]}\"'`;:,]*")
_CLOSERS = re.compile(r"[)\]}]+")
_BLOCK_START = {
    "python": re.compile(r":\s*(#.*)?$"),
    "lua": re.compile(r"(\b(then|do|else|repeat)|\bfunction\b.*\))\s*$"),
    "": re.compile(r"[:{]\s*$"),
}
_BRACES = re.compile(r"\{\s*$")
_WORDS = re.compile(r"\w{2,}")
_DEFINITION_LINE = re.compile(  # a line that is rarely inside a string: where counting brackets may start
    r"^(?:(?:async )?def |class \w+[(:{ ]|@\w|import \w+$|from \S+ import |fn |func |function |pub |export |impl |"
    r"struct |#include|static |const |local |public |package )",
    re.MULTILINE,
)
_INNER_DEFINITION_LINE = re.compile(r"^[ \t]+(?:async )?def \w+\(|^[ \t]+class \w+[(:]", re.MULTILINE)


@dataclass(frozen=True)
class CursorContext:
    """Code around the cursor, and the extent of a completion there (`kind`)."""

    kind: ExtentKind
    language: str
    line: str  # the cursor's line, up to the cursor
    rest: str  # the cursor's line, after the cursor
    brackets: Brackets  # state at the cursor
    open_before: int  # number of brackets in `brackets.stack` that earlier lines opened
    unclosed_after: frozenset[int]  # indices in `brackets.stack`: brackets that the text after the cursor leaves open
    closers_below: str  # closers that begin a line below; the completion must open their brackets
    starts_in_string: bool  # the line starts in a string or a comment
    after_block_start: bool  # the last line with code before the cursor starts a block
    above: Sequence[str]  # nearest non-empty lines above, top to bottom
    below: Sequence[str]  # nearest non-empty lines below, top to bottom

    @property
    def indent(self) -> int:
        """Return the indentation of the cursor's line, in characters."""
        return indent_of(self.line)

    @property
    def missing_closers(self) -> str:
        """Return the closers of the innermost brackets that earlier lines opened and nothing closes."""
        first = self.open_before
        while first and first - 1 in self.unclosed_after:
            first -= 1
        return "".join(opener.closer for opener in reversed(self.brackets.stack[first : self.open_before]))

    def matches_closers_below(self, stack: Sequence[Opener]) -> bool:
        """Return whether the innermost open brackets are those that `closers_below` close."""
        innermost = [opener.closer for opener in reversed(stack)][: len(self.closers_below)]
        return bool(self.closers_below) and innermost == list(self.closers_below)


def find_cursor_context(language: str, before: str, after: str, mode: Mode = "auto") -> CursorContext:
    """Return the context of the cursor between `before` and `after`, texts with LF line ends."""
    before = _last_lines(before)
    line, (rest, _, later) = before.rpartition("\n")[2], after[:MAX_AFTER_CHARS].partition("\n")
    brackets = Brackets(language)
    brackets.feed(_shorten_words(before[: len(before) - len(line)]))
    open_before, in_string = len(brackets.stack), bool(brackets.terminator)
    for char in _shorten_words(line):
        brackets.feed(char)
        open_before = min(open_before, len(brackets.stack))
    if not _in_string_or_comment(language, before, brackets):
        brackets.terminator, in_string = "", False
    above = [text for text in before.split("\n")[:-1] if text.strip()][-LINES_ABOVE:]
    below = [text.rstrip() for text in later.split("\n") if text.strip()][:LINES_BELOW]
    code_line = line if line.strip() or not above else above[-1]
    starts = starts_block(language, code_line) and (not line.strip() or not rest.strip())
    kind = _kind(mode, line, rest, brackets, starts)
    unclosed = _find_unclosed(language, brackets, after, open_before)
    closers = _find_closers_below(brackets, indent_of(line), rest, later)
    return CursorContext(
        kind, language, line, rest, brackets, open_before, unclosed, closers, in_string, starts, above, below
    )


def starts_block(language: str, line: str) -> bool:
    """Return whether a line ends with the start of a block, such as `:`, `{` or Lua's `then`."""
    return bool(_BLOCK_START.get(language, _BRACES).search(line))


def indent_of(line: str) -> int:
    """Return the number of spaces and tabs that a line begins with."""
    return len(line) - len(line.lstrip(" \t"))


def _kind(mode: Mode, line: str, rest: str, brackets: Brackets, after_block_start: bool) -> ExtentKind:
    if mode == "line":
        return "line"
    if mode == "lines":
        return "block"
    if brackets.terminator:
        return "line"
    if mode == "open":
        return "open"
    if not _CLOSING.fullmatch(rest):
        return "line"
    return "block" if after_block_start or not (line.strip() or rest.strip()) else "statement"


def _shorten_words(text: str) -> str:
    """Return a text with every word shortened to "a": a third of the characters, with all brackets and quotes."""
    return _WORDS.sub("a", text)


def _last_lines(before: str) -> str:
    """Return about the last `MAX_BEFORE_CHARS`, if possible from a line on that is probably not inside a string."""
    if len(before) <= MAX_BEFORE_CHARS:
        return before
    for pattern, factor in ((_DEFINITION_LINE, 1), (_DEFINITION_LINE, 2), (_INNER_DEFINITION_LINE, 1)):
        if match := pattern.search(before, max(len(before) - factor * MAX_BEFORE_CHARS, 0)):
            return before[match.start() :]
    return before[-MAX_BEFORE_CHARS:]


def _in_string_or_comment(language: str, before: str, brackets: Brackets) -> bool:
    """Return whether the cursor is in a string or comment: by the grammar if there is one, else by `brackets`."""
    if not brackets.terminator:
        return False
    tree = syntax.parse(language, before + brackets.terminator)  # an unterminated string does not parse as one
    if tree is None:
        return True
    end = len(before.encode("utf-8", "replace"))
    node = tree.root_node.descendant_for_byte_range(max(end - 1, 0), end)
    while node:
        if re.search("string|comment|char|regex|ERROR|template", node.type):
            return True
        node = node.parent
    return False


def _find_closers_below(brackets: Brackets, indent: int, rest: str, later: str) -> str:
    """Return the closers that begin the next line at the cursor's indentation; "" if they close a bracket above."""
    outer = next((line for line in later.split("\n") if line.strip() and indent_of(line) <= indent), "")
    match = _CLOSERS.match(outer, indent)
    if not match or indent_of(outer) < indent:
        return ""
    whole_line = deepcopy(brackets)
    whole_line.feed(rest)
    closes_one = any(opener.indent == indent and opener.closer == match[0][0] for opener in whole_line.stack)
    return "" if closes_one else match[0]


def _find_unclosed(language: str, brackets: Brackets, after: str, open_before: int) -> frozenset[int]:
    """Return the indices of the open brackets that the text after the cursor does not close."""
    stack, later = brackets.stack, Brackets(language)
    later.terminator = brackets.terminator
    unclosed = set(range(len(stack)))
    indent, first, blank = 0, True, True
    for char in _shorten_words(after[:MAX_AFTER_CHARS]):
        if char == "\n":
            indent, first, blank = 0, False, True
        elif blank and char in " \t":
            indent += 1
        else:
            blank = False
            if char in CLOSERS and not later.terminator and not later.stack:
                # A closer below belongs to a bracket whose line is indented no further.
                closable = [i for i in unclosed if stack[i].closer == char and (first or stack[i].indent <= indent)]
                unclosed -= {max(closable, default=-1)}  # the innermost; -1 removes nothing
        later.feed(char)
    cut_off = len(after) > MAX_AFTER_CHARS  # what was cut off may close the brackets of earlier lines
    return frozenset(unclosed - set(range(open_before)) if cut_off else unclosed)
