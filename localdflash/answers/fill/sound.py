"""Whether a text can stand at the cursor as it is: nothing is open that does not close, and what follows still parses.

Three readings, the cheapest first: brackets and strings, the indentation of Python, and a syntax tree. A tree with the
text must have no more errors than one without it has, or one without the cursor's line, which is being written.
"""

import re
from copy import deepcopy
from functools import cached_property

from localdflash.answers.fill.extent import AFTER, Extent, window
from localdflash.answers.fill.indentation import Indentation
from localdflash.text import syntax

_OPERATOR = re.compile(r"(?:[-+*/%=&|^<>~,.(\[{\\]|\b(?:and|or|not|in|is|if|else|lambda|new|typeof|await))\s*$")
_INCREMENT = re.compile(r"(?:\+\+|--)\s*$")


class Soundness:
    """Reads texts at one cursor, whose `extent` was found between `before` and `after`."""

    def __init__(self, extent: Extent, before: str, after: str) -> None:
        self._extent = extent
        self._before = window(before)
        self._after = after[: after.rfind("\n", 0, AFTER) + 1] if len(after) > AFTER else after
        self._indentation = Indentation(extent, self._before) if extent.language == "python" else None

    def __call__(self, text: str) -> bool:
        """Whether the text may be shown."""
        if not self._is_balanced(text):
            return False
        if self._indentation and not self._indentation.fits(text):
            return False
        errors = syntax.errors(self._extent.language, self._before + text + self._after, self._most_errors)
        return errors is None or errors <= self._most_errors

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
        if len(brackets.stack) > len(extent.brackets.stack):
            return False
        if not brackets.inside and ends_its_line and not brackets.stack:
            return not _OPERATOR.search(text) or bool(_INCREMENT.search(text))
        return True

    @cached_property
    def _closes_the_string(self) -> bool:
        """Whether the string that the cursor is in is closed after it."""
        quote = self._extent.brackets.inside
        return quote in (self._extent.rest if len(quote) == 1 and quote != "`" else self._after)

    @cached_property
    def _most_errors(self) -> int:
        """The errors that were there before the cursor's line was begun, or that it has now."""
        language, line, rest = self._extent.language, self._extent.line, self._extent.rest
        as_it_is = syntax.errors(language, self._before + self._after) or 0
        if not as_it_is:
            return 0
        without = self._before[: len(self._before) - len(line)] + self._after[len(rest) :]
        return min(as_it_is, syntax.errors(language, without) or 0)
