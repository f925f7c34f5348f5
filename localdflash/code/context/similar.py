"""Find passages of other files that resemble the one around the cursor, by Jaccard similarity of their identifiers."""

import re
from collections.abc import Sequence
from functools import lru_cache

from localdflash.code.context.files import MAX_FILE_BYTES, is_minified

WINDOW_LINES = 40
STEP_LINES = 20  # between the starts of two windows
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


def find_identifiers(text: str) -> frozenset[str]:
    """Return the names in a text of any language, without common keywords."""
    return frozenset(_IDENTIFIER.findall(text)) - _COMMON


def identifiers_around(lines: Sequence[str], line: int) -> frozenset[str]:
    """Return the identifiers of the window around a line, without those of the line itself."""
    start = max(line - WINDOW_LINES // 2, 0) // 10 * 10
    return find_identifiers("\n".join((*lines[start:line], *lines[line + 1 : start + WINDOW_LINES + 10])))


def find_most_similar(wanted: frozenset[str], text: str) -> tuple[str, float]:
    """Return the window of a text that shares most identifiers, and its similarity from 0 to 1."""
    scores = [len(wanted & names) / (len(wanted | names) or 1) for names in _windows(text)]
    best = max(scores, default=0.0)
    start = scores.index(best) * STEP_LINES if best else 0
    return "\n".join(text.split("\n")[start : start + WINDOW_LINES]).strip("\n"), best


@lru_cache(64)
def _windows(text: str) -> tuple[frozenset[str], ...]:
    """Return the identifiers of each window. Cached, because other files rarely change while a user types."""
    if len(text) > MAX_FILE_BYTES or is_minified(text):
        return ()
    lines = text.split("\n")
    return tuple(
        find_identifiers("\n".join(lines[start : start + WINDOW_LINES]))
        for start in range(0, max(len(lines) - STEP_LINES, 1), STEP_LINES)
    )
