"""Find passages of other files that look like the one around the cursor: Jaccard similarity of their identifiers.

Files are cut into windows at fixed lines, and the passage around the cursor is cut in steps, without the line that is
being typed: a typed character changes neither.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from localdflash.code.context.files import LARGEST, is_minified

WINDOW = 40  # lines
STEP = 20  # lines between two windows' starts
_IDENTIFIER = re.compile(r"[^\W\d]\w{2,}")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """and any are auto bool break case catch char class const continue def default delete double elif else end enum
        except export extends false finally float fn for from func function get goto have if impl implements import in
        int interface is it let lambda local long match mod mut namespace new nil none not null of or package pass print
        private protected pub public raise return self set short static str string struct super switch template that the
        then this throw true try type typedef typename undefined union unsigned use using var virtual void where while
        with yield None True False""",
    )
)


class Passage(NamedTuple):
    """Lines of a file, with their similarity from 0 to 1."""

    line: int
    text: str
    score: float


def identifiers(text: str) -> frozenset[str]:
    """The names in a text of any language, without common keywords."""
    return frozenset(_IDENTIFIER.findall(text)) - _COMMON


def around(lines: Sequence[str], line: int) -> frozenset[str]:
    """The identifiers of the window around a line, without that line's own."""
    start = max(line - WINDOW // 2, 0) // 10 * 10
    return identifiers("\n".join((*lines[start:line], *lines[line + 1 : start + WINDOW + 10])))


def most_similar(wanted: frozenset[str], text: str) -> Passage | None:
    """The window of a text that shares most identifiers; None if none shares any."""
    best = (0.0, 0)
    windows = _windows(text)
    for number, names in enumerate(windows):
        shared = len(wanted & names)
        score = shared / (len(wanted) + len(names) - shared) if shared else 0.0
        best = max(best, (score, -number))
    if not best[0]:
        return None
    start = -best[1] * STEP
    return Passage(start, "\n".join(text.split("\n")[start : start + WINDOW]).strip("\n"), best[0])


@lru_cache(64)
def _windows(text: str) -> tuple[frozenset[str], ...]:
    """The identifiers of each window; cached, because other files hardly change while one is typed in."""
    if len(text) > LARGEST or is_minified(text):
        return ()
    lines = text.split("\n")
    return tuple(
        identifiers("\n".join(lines[start : start + WINDOW])) for start in range(0, max(len(lines) - STEP, 1), STEP)
    )
