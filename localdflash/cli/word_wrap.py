"""Wrap text for a terminal between words, because the terminal itself would break it within words."""

import shutil
import sys

from localdflash.cli import output
from localdflash.tui.styled_lines import StyledRun, wrap


def say(line: str) -> None:
    """Print a line for the user on stderr, wrapped on a terminal; see `output.say`."""
    width = shutil.get_terminal_size().columns if sys.stderr and sys.stderr.isatty() else len(line)
    for row in wrap([StyledRun(line)], width):
        output.say(row.text)


class WordWrap:
    """Word wrapper for streamed text. It leaves lines of code unwrapped, so that they can be copied."""

    def __init__(self) -> None:
        self._width = shutil.get_terminal_size().columns
        self._row, self._printed = "", 0  # last row, number of its characters already returned
        self._is_code = False

    def push(self, text: str) -> str:
        """Return the text to print now; a word is held back until it ends."""
        first, *others = text.split("\n")
        printed = self._add(first)
        for line in others:
            printed += self._row[self._printed :] + "\n"
            self._is_code ^= self._row.startswith("```")
            self._row, self._printed = "", 0
            printed += self._add(line)
        return printed

    def _add(self, text: str) -> str:
        *full, last = wrap([StyledRun(self._row + text)], 2**31 if self._is_code else self._width)
        printed = ""
        for row in full:
            printed += row.text[self._printed :] + "\n" * (row.width < self._width)  # the terminal wraps a full row
            self._printed = 0
        self._row = last.text
        start, self._printed = self._printed, max(self._printed, self._row.rfind(" "))
        return printed + self._row[start : self._printed]
