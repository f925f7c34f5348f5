"""The indentation of Python: where a line may begin, by the lines above the cursor, and which line may follow."""

from copy import deepcopy

from localdflash.answers.fill.brackets import CLOSERS
from localdflash.answers.fill.extent import Extent, indent_of, opens_block

UNIT = 4  # blanks, where no line says how many


class Indentation:
    """What the lines around one cursor allow; `before` are those above it, with the cursor's own up to the cursor."""

    def __init__(self, extent: Extent, before: str) -> None:
        self._extent = extent
        above = [line for line in before.split("\n")[:-1] if line.strip() and not line.lstrip().startswith("#")]
        self._levels, self._last = _levels(above), above[-1] if above else ""

    def fits(self, text: str) -> bool:
        """Whether every line of a text at the cursor may stand where it does, and the next line below it, too."""
        extent, levels, brackets = self._extent, list(self._levels), deepcopy(self._extent.brackets)
        lines = text.split("\n")
        last, at, within = self._last, extent.line, bool(extent.outer or extent.begins_in_text)
        for number, line in enumerate(lines):
            inside = last.endswith("\\") or (bool(brackets.stack or brackets.inside.strip("\n")) if number else within)
            brackets.feed(line if number == len(lines) - 1 else line + "\n")
            whole = at + line
            at = ""
            if not whole.strip() or whole.lstrip().startswith("#"):
                continue
            if inside:
                last = " " * indent_of(last) + whole.strip()  # what a statement ends with may open its block
                continue
            if not self._may_follow(last, whole, levels):
                return False
            last = whole
        if extent.rest.strip() and len(lines) == 1:
            return True
        return bool(brackets.stack or brackets.inside) or self._may_come_below(last, levels)

    def _may_follow(self, last: str, line: str, levels: list[int]) -> bool:
        indent, before = indent_of(line), indent_of(last)
        if opens_block("python", last):
            if indent <= before:
                return False
            levels.append(indent)
            return True
        if not last:
            return True
        return indent in levels if indent < before else indent == before

    def _may_come_below(self, last: str, levels: list[int]) -> bool:
        """Whether the first line below the cursor's can follow the text's last one."""
        below = next((line for line in self._extent.below if not line.lstrip().startswith("#")), "")
        if not below:
            return bool(self._extent.below) or not opens_block("python", last)
        if below.lstrip()[0] in CLOSERS:
            return True
        indent, before = indent_of(below), indent_of(last)
        if opens_block("python", last):
            return indent > before
        return indent == before or not last or (indent < before and indent in levels)


def missing_blanks(extent: Extent) -> str:
    """The blanks that a statement on an empty line begins with at least, so far as they are not there."""
    lines = [*extent.above[-1:], *extent.below[:1]]
    if extent.language != "python" or extent.line.strip(" ") or extent.rest.strip() or extent.outer:
        return ""
    if not extent.above or extent.begins_in_text or any(line.startswith("\t") for line in lines):
        return ""
    above, below = indent_of(lines[0]), indent_of(lines[1]) if extent.below else 0
    inner = below if below > above else above + UNIT
    least = inner if opens_block("python", lines[0]) else min(above, below)
    return " " * (least - len(extent.line))


def _levels(lines: list[str]) -> list[int]:
    """The indentations of the blocks that the last of these lines is in, and those around them."""
    found: list[int] = []
    for line in reversed(lines):
        if not found or indent_of(line) < found[-1]:
            found.append(indent_of(line))
    return found[::-1]
