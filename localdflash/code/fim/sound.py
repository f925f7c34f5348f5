"""Whether a text can stand at the cursor as it is: nothing is open that does not close, and what follows still parses.

Three readings, the cheapest first: brackets and strings; the lines of Python, by its own parser; and a syntax tree of
the file, or of as much of it as came. That must have no error near the cursor, and no more than without the text, or
without the cursor's line, which is being written. A block that is not closed yet is read as if it ended there.
"""

import re
from collections.abc import Callable
from copy import deepcopy
from functools import cached_property

from tree_sitter import Node

from localdflash.code.fim.extent import Extent, find
from localdflash.code.fim.python_lines import PythonLines
from localdflash.text import syntax

_OPERATOR = re.compile(r"(?:[-+*/%=&|^<>~,.(\[{\\]|\b(?:and|or|not|in|is|if|else|lambda|new|typeof|await))\s*$")
_SIGNS = re.compile(r"(?:,|&&|\|\||[-+|&])\Z")
_INCREMENT = re.compile(r"(?:\+\+|--)\s*$")
_PART = re.compile(r"\n(?=[^\s)\]}])")  # before a line that is not indented
CUT = 12_000  # characters: of so many after the cursor the last part may not be whole
NEAR = 12  # lines above and below


class Soundness:
    """Reads texts at one cursor, whose `extent` was found between `before` and `after`."""

    def __init__(self, extent: Extent, before: str, after: str) -> None:
        self._extent = extent
        begins = _PART.search(before) if before[:1].isspace() else None  # it was cut
        self._before = before[begins.start() + 1 :] if begins else before
        self._after = after if len(after) < CUT else after[: _last_part(after)]
        self._python = PythonLines(extent, self._before, self._after) if extent.language == "python" else None

    @classmethod
    def at(cls, extent: Extent, before: str, after: str, closed: str) -> Callable[[str], bool]:
        """Reads texts that either close again what an editor has closed behind the cursor, or leave that to stand."""
        without = cls(extent, before, after)
        if not closed:
            return without
        within = cls(find(extent.language, before, closed + after), before, closed + after)
        return lambda text: without(text) or within(text)

    def __call__(self, text: str) -> bool:
        """Whether the text may be shown."""
        if not self._is_balanced(text):
            return False
        if self._python and not self._python.fit(text):
            return False
        if not syntax.has_grammar(self._extent.language):
            return True
        return any(self._parses(reading, text) for reading in self._readings)

    def _parses(self, reading: "_Reading", text: str) -> bool:
        """Whether there is no error near the text, and none more than without it."""
        found = syntax.errors(reading.around.with_text(text))
        return len(found) <= reading.most_errors and not any(self._is_near(error, text) for error in found)

    def _is_near(self, error: Node, text: str) -> bool:
        """Whether an error may be the text's: it begins on one of its lines, or on few above or below."""
        first = self._before.count("\n")
        return first - NEAR <= error.start_point.row <= first + text.count("\n") + NEAR

    @cached_property
    def _readings(self) -> "list[_Reading]":
        """The file as it is, and with the blocks ended behind the cursor's line that nothing ends."""
        extent, after = self._extent, self._after
        rest, later = after[: len(extent.rest)], after[len(extent.rest) :]
        ended = [f"{rest}\n{extent.unclosed}{later}"] if extent.unclosed else []
        return [_Reading(extent, self._before, one) for one in (after, *ended)]

    def _is_balanced(self, text: str) -> bool:
        """Whether the text closes what it opens, and ends neither in a string of its own nor with an operator."""
        extent = self._extent
        brackets = deepcopy(extent.brackets)
        brackets.feed(text)
        ends_its_line = not extent.rest.strip() or "\n" in text
        if brackets.inside in ("", "\n"):
            if extent.brackets.inside not in ("", "\n") and extent.rest.startswith(extent.brackets.inside):
                return False  # the string that the cursor is in ends twice
        elif brackets.inside != extent.brackets.inside or not self._closes_the_string:
            return False
        awaited = len(extent.awaited) if extent.opens_what_is_awaited(brackets.stack) else 0
        if len(brackets.stack) - awaited > self._most_open or (extent.awaited and not awaited):
            return False
        if not brackets.inside and ends_its_line and not brackets.stack:
            return not _OPERATOR.search(text) or bool(_INCREMENT.search(text)) or self._goes_on_as_above(text)
        return True

    def _goes_on_as_above(self, text: str) -> bool:
        """Whether a text of one line ends with the sign that the line above ends with: one of a list, or of a chain."""
        above = self._extent.above[-1].rstrip() if self._extent.above else ""
        signs = _SIGNS.search(text)
        return signs is not None and "\n" not in text and above.endswith(signs[0])

    @cached_property
    def _most_open(self) -> int:
        """The brackets that may be open at the end: none of the cursor's line that the text after it leaves open."""
        count = len(self._extent.brackets.stack)
        return next((at for at in range(self._extent.outer, count) if at in self._extent.owed), count)

    @cached_property
    def _closes_the_string(self) -> bool:
        """Whether the string that the cursor is in is closed after it."""
        quote = self._extent.brackets.inside
        return quote in (self._extent.rest if len(quote) == 1 and quote != "`" else self._after)


class _Reading:
    """What stands around a cursor."""

    def __init__(self, extent: Extent, before: str, after: str) -> None:
        self._extent, self._before, self._after = extent, before, after

    @cached_property
    def around(self) -> syntax.Surroundings:
        """Its tree, to be read again with a text."""
        return syntax.Surroundings(self._extent.language, self._before, self._after)

    @cached_property
    def most_errors(self) -> int:
        """The errors that were there before the cursor's line was begun, or that it has now."""
        as_it_is = len(syntax.errors(self.around.tree))
        if not as_it_is:
            return 0
        line, rest = self._extent.line, self._extent.rest
        without = syntax.parse(
            self._extent.language, self._before[: len(self._before) - len(line)] + self._after[len(rest) :]
        )
        return min(as_it_is, len(syntax.errors(without))) if without else as_it_is


def _last_part(text: str) -> int:
    """Where the last part of a cut text begins: at a line that is not indented."""
    found = [part.start() + 1 for part in _PART.finditer(text)]
    return found[-1] if found else len(text)
