"""Check the lines of a completion with Python's parser, in a skeleton of the blocks around the cursor.

    if 1:               one line for each block around the cursor, indented like the line that begins the block
        pass            stands for the line above; `if 1:` if that line begins a block
        <completion>
    pass                stands for the next line below, with its indentation

Tree-sitter is not enough: it accepts almost any indentation, and several Python statements on one line.
"""

import ast
import re
import warnings
from copy import deepcopy
from functools import cached_property

from localdflash.code.fim.brackets import CLOSERS
from localdflash.code.fim.extent import CursorContext, indent_of, starts_block

INDENT_UNIT = 4  # blanks, if no line around the cursor is indented
_TRY = re.compile(r"^([ \t]*)try:", re.MULTILINE)
_BRANCH = re.compile(r"\s*(?:elif|else|except|finally|case)\b")


class PythonLines:
    """Checker of completions at one cursor, between `before` and `after`."""

    def __init__(self, cursor: CursorContext, before: str, after: str) -> None:
        self._cursor, self._before, self._text_after = cursor, before, after
        above = [line for line in before.split("\n")[:-1] if line.strip() and not line.lstrip().startswith("#")]
        self._above = _skeleton(above)
        self._below = next((line for line in cursor.below if not line.lstrip().startswith("#")), "")

    def fits(self, text: str) -> bool:
        """Return whether a completion makes valid statements between the lines above and the next line below.

        An incomplete statement, or one that begins above, is parsed with the whole file instead. If the file does not
        parse without the completion either, the completion is accepted.
        """
        cursor, brackets = self._cursor, deepcopy(self._cursor.brackets)
        brackets.feed(text + cursor.rest)
        lines = cursor.line + text + cursor.rest
        unknown = cursor.open_before or cursor.starts_in_string or brackets.stack or brackets.terminator.strip("\n")
        if unknown or _BRANCH.match(lines) or lines.lstrip().startswith(tuple(CLOSERS)):
            return not self._file_parses or _parses(self._before + text + self._text_after)
        return _parses(f"{self._above}{lines}\n{self._after(lines)}{self._end_of_try(lines)}")

    @cached_property
    def _file_parses(self) -> bool:
        line, rest = self._cursor.line, self._cursor.rest
        without = self._before[: len(self._before) - len(line)] + self._text_after[len(rest) :]
        return _parses(self._before + self._text_after) or _parses(without)

    def _after(self, lines: str) -> str:
        below, last = self._below, lines.rpartition("\n")[2]
        if last.lstrip().startswith("@"):
            return _blanks(last) + "def decorated(): pass\n"
        if not below or below.lstrip()[0] in CLOSERS or _BRANCH.match(below):
            lacks_body = below and starts_block("python", last)
            return _blanks(last) + " pass\n" if lacks_body else ""
        return _blanks(below) + "pass\n"

    def _end_of_try(self, lines: str) -> str:
        """Return an end for the last `try` of these lines if its `except` or its body is below, else ""."""
        tries = _TRY.findall(lines)
        if not tries:
            return ""
        is_below = indent_of(self._below) > len(tries[-1]) or bool(_BRANCH.match(self._below))
        return f"{tries[-1]}finally: pass\n" if is_below else ""


def missing_blanks(cursor: CursorContext) -> str:
    """Return the blanks that an empty Python line lacks for the indentation that its neighbours suggest.

    Blanks that are there count as the user's choice, except those of the header above.
    """
    lines = [*cursor.above[-1:], *cursor.below[:1]]
    if cursor.language != "python" or cursor.line.strip(" ") or cursor.rest.strip() or cursor.open_before:
        return ""
    if not cursor.above or cursor.starts_in_string or any(line[0] == "\t" for line in (*cursor.above, *cursor.below)):
        return ""
    above, below = indent_of(lines[0]), indent_of(lines[1]) if cursor.below else 0
    if not starts_block("python", lines[0]):
        return "" if cursor.line else " " * min(above, below)
    if len(cursor.line) > above:
        return ""  # indented already
    unit = min(filter(None, map(indent_of, (*cursor.above, *cursor.below))), default=INDENT_UNIT)
    inner = below if below > above else above + min(unit, INDENT_UNIT)
    return " " * (inner - len(cursor.line))


def _blanks(line: str) -> str:
    return line[: indent_of(line)]


def _skeleton(above: list[str]) -> str:
    """Return the skeleton of the blocks around the last of these lines, and of the line itself."""
    blocks: list[str] = []
    for line in reversed(above):
        blanks = _blanks(line)
        if not blocks:
            blocks.append(blanks + ("if 1:" if starts_block("python", line) else "pass"))
        elif len(blanks) < indent_of(blocks[-1]):
            blocks.append(f"{blanks}if 1:")
    if blocks and blocks[-1][0].isspace():  # the lines that begin the outer blocks were cut off
        blocks.append("if 1:")
    return "".join(f"{line}\n" for line in reversed(blocks))


def _parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about invalid escapes in the user's code
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
