"""Check whether a completion is sound at the cursor: it closes what it opens, and the code around it parses.

Three checks: brackets and strings; for Python, the lines with Python's parser; errors in the file's syntax tree.
"""

import re
from collections.abc import Callable, Sequence, Set
from copy import deepcopy
from functools import cache, cached_property, partial
from typing import NamedTuple

from tree_sitter import Node, Tree

from localdflash.code.fim.extent import CursorContext, find_cursor_context
from localdflash.code.fim.python_lines import PythonLines
from localdflash.text import syntax

# Not operators: `...`, `*/`, and the `>` of `List<T>`, `<stdio.h>` or `</li>`.
_OPERATOR = re.compile(
    r"(?:[-+*%=&|^<~,(\[{\\]|(?<!\.)\.|(?<!\*)/|(?<=[\s=-])>|\b(?:and|or|not|in|is|if|else|lambda|new|typeof|await))\s*$"
)
_SENTENCE_ENDS = (".", ",")  # may end a line in a language without a grammar, such as Markdown
_SIGNS = re.compile(r"(?:,|&&|\|\||[-+|&])\Z")
_INCREMENT = re.compile(r"(?:\+\+|--)\s*$")
_PART = re.compile(r"\n(?=[^\s)\]}])")  # line feed before an unindented line: a top-level part begins
MAX_AFTER_CHARS = 12_000  # a text after the cursor of this length was truncated, perhaps within a top-level part
NEAR_LINES = 12  # no syntax error is accepted within this distance of the completion


_Places = Set[tuple[int, int]]  # byte ranges


class _Reading(NamedTuple):
    """Parsed code around the cursor."""

    around: syntax.Surroundings
    max_errors: int  # the lower number of syntax errors, with or without the cursor's line
    known: _Places  # of errors on other lines, which are not the completion's; see `_places`


class Soundness:
    """Callable check of completions at one cursor, between `before` and `after`."""

    def __init__(self, cursor: CursorContext, before: str, after: str) -> None:
        self._cursor = cursor
        part = _PART.search(before) if before[:1].isspace() else None  # indented: the text was truncated
        self._before = before[part.start() + 1 :] if part else before
        self._after = after if len(after) < MAX_AFTER_CHARS else after[: _start_of_last_part(after)]
        self._python = PythonLines(cursor, self._before, self._after) if cursor.language == "python" else None
        # The text after the cursor, and a variant that closes unclosed brackets at the end of the cursor's line.
        rest, later = self._after[: len(cursor.rest)], self._after[len(cursor.rest) :]
        closing = [f"{rest}\n{cursor.missing_closers}{later}"] if cursor.missing_closers else []
        self._readings = [cache(partial(self._read, after)) for after in (self._after, *closing)]
        self._has_grammar = syntax.has_grammar(cursor.language)

    @classmethod
    def at(cls, cursor: CursorContext, before: str, after: str, closers: str) -> Callable[[str], bool]:
        """Return a check of completions that contain or omit `closers`, those that the editor inserted."""
        contains = cls(cursor, before, after)
        if not closers:
            return contains
        omits = cls(find_cursor_context(cursor.language, before, closers + after), before, closers + after)
        return lambda text: contains(text) or omits(text)

    def __call__(self, text: str) -> bool:
        """Return whether the completion is sound."""
        if not self._is_balanced(text):
            return False
        if self._python and not self._python.fits(text):
            return False
        if not self._has_grammar:
            return True
        return any(self._parses(read, text) for read in self._readings)

    def _parses(self, read: Callable[[], _Reading], text: str) -> bool:
        around, max_errors, known = read()
        tree = around.with_text(text)
        errors, first = syntax.errors(tree), self._before.count("\n")
        last = first + text.count("\n")
        near = [error for error in errors if first - NEAR_LINES <= error.start_point.row <= last + NEAR_LINES]
        above, below = _places(near, tree, first, last)
        return len(errors) <= max_errors and len(above) + len(below) == len(near) and above | below <= known

    def _read(self, after: str) -> _Reading:
        language, line, rest = self._cursor.language, self._cursor.line, self._cursor.rest
        around = syntax.Surroundings(language, self._before, after)
        errors = syntax.errors(around.tree)
        text = self._before[: -len(line) or None] + after[len(rest) :]
        without = syntax.parse(language, text) if errors else None
        if without is None:
            return _Reading(around, len(errors), frozenset())
        errors_without, row = syntax.errors(without), self._before.count("\n")
        above, _ = _places(errors, around.tree, row, row)  # those below may be due to the incomplete line
        above_without, below_without = _places(errors_without, without, row, row)
        source = text.encode("utf-8", "replace")
        in_error = [source[slice(*error.byte_range)] for error in errors_without if error.start_point.row > row]
        if not all(map(_brackets_match, in_error)):  # what is below lacks an opener, which may be missing here
            below_without = frozenset()
        known = above | above_without | below_without
        return _Reading(around, min(len(errors), len(errors_without)), known)

    def _is_balanced(self, text: str) -> bool:
        """Return whether a completion closes the brackets and strings it opens and does not end with an operator."""
        cursor = self._cursor
        brackets = deepcopy(cursor.brackets)
        brackets.feed(text)
        ends_its_line = not cursor.rest.strip() or "\n" in text
        if brackets.terminator == "\n" != cursor.brackets.terminator and cursor.rest.strip():
            return False  # the rest of the line becomes a comment
        if brackets.terminator in ("", "\n"):
            if cursor.brackets.terminator not in ("", "\n") and cursor.rest.startswith(cursor.brackets.terminator):
                return False  # the string that the cursor is in ends twice
        elif brackets.terminator != cursor.brackets.terminator or not self._closes_the_string:
            return False
        below = len(cursor.closers_below) if cursor.matches_closers_below(brackets.stack) else 0
        if len(brackets.stack) - below > self._max_open or (cursor.closers_below and not below):
            return False
        if not brackets.terminator and ends_its_line and not brackets.stack:
            return (
                not _OPERATOR.search(cursor.line + text)
                or bool(_INCREMENT.search(text))
                or self._ends_like_line_above(text)
                or (not self._has_grammar and text.endswith(_SENTENCE_ENDS))
            )
        return True

    def _ends_like_line_above(self, text: str) -> bool:
        """Return whether a one-line completion ends with an operator or comma that also ends the line above."""
        above = self._cursor.above[-1].rstrip() if self._cursor.above else ""
        signs = _SIGNS.search(text)
        return signs is not None and "\n" not in text and above.endswith(signs[0])

    @cached_property
    def _max_open(self) -> int:
        """Return the allowed number of open brackets at the end: those that the text after the cursor may close."""
        count = len(self._cursor.brackets.stack)
        return next((at for at in range(self._cursor.open_before, count) if at in self._cursor.unclosed_after), count)

    @cached_property
    def _closes_the_string(self) -> bool:
        """Return whether the string around the cursor is closed after it."""
        quote = self._cursor.brackets.terminator
        return quote in (self._cursor.rest if len(quote) == 1 and quote != "`" else self._after)


def _brackets_match(code: bytes) -> bool:
    """Return whether a piece of code has as many opening as closing brackets of each kind."""
    return all(code.count(opener) == code.count(closer) for opener, closer in (b"()", b"[]", b"{}"))


def _places(errors: Sequence[Node], tree: Tree, first: int, last: int) -> tuple[_Places, _Places]:
    """Return the byte ranges of errors above line `first`, and of those below line `last`, counted from the end."""
    size = tree.root_node.end_byte
    above = {error.byte_range for error in errors if error.end_point.row < first}
    below = [error.byte_range for error in errors if error.start_point.row > last]
    return above, {(start - size, end - size) for start, end in below}


def _start_of_last_part(text: str) -> int:
    """Return the offset of the last line that is not indented, where the last part of a truncated text begins."""
    starts = [part.start() + 1 for part in _PART.finditer(text)]
    return starts[-1] if starts else len(text)
