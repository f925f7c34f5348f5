"""Runs cut into rows: raw text wherever the width ends, sentences between words."""

import re
from collections.abc import Iterable

from rich.cells import cell_len, split_graphemes

from localdflash.tui.lines import Line, Run

_WORDS = re.compile(r"\s+|\S+")


def cut(runs: Iterable[Run], width: int) -> list[Line]:
    """Rows that are full: as raw text stands in a file."""
    rows: list[Line] = []
    row: list[Run] = []
    column = 0
    for run in runs:
        text = run.text
        while text:
            fitting = _fitting(text, width - column) or (0 if column else 1)  # at least one in a row
            if fitting:
                row.append(Run(text[:fitting], run.style))
                column += cell_len(text[:fitting])
                text = text[fitting:]
            if text:
                rows.append(Line(tuple(row), joined=""))
                row, column = [], 0
    return [*rows, Line(tuple(row))]


def wrapped(runs: Iterable[Run], width: int, *, copied: bool = True) -> list[Line]:
    """Rows that end between words; `copied`: False where it is all decoration. Spaces may stand over the edge."""
    rows: list[list[Run]] = [[]]
    column = 0
    for run in runs:
        for word in _WORDS.findall(run.text):
            size = cell_len(word)
            if column and column + size > width and not word.isspace():
                rows.append([])
                column = 0
            *full, last = (
                [line.runs for line in cut([Run(word, run.style)], width)]
                if size > width
                else [(Run(word, run.style),)]
            )
            for piece in full:
                rows[-1] += piece
                rows.append([])
                column = 0
            rows[-1] += last
            column += sum(cell_len(piece.text) for piece in last)
    if not copied:
        return [Line(tuple(row), decoration=len(row), joined="") for row in rows]
    return [*(Line(tuple(row), joined="") for row in rows[:-1]), Line(tuple(rows[-1]))]


def _fitting(text: str, cells: int) -> int:
    """How many characters from the start fit."""
    if text.isascii():
        return min(len(text), max(0, cells))
    for start, _, size in split_graphemes(text)[0]:
        cells -= size
        if cells < 0:
            return start
    return len(text)
