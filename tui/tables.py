"""Tables: columns side by side, narrowed if needed, or one field per line if they cannot fit."""

from collections.abc import Sequence
from itertools import zip_longest

from localdflash.tui.block_layout import Block
from localdflash.tui.inline import inline
from localdflash.tui.styled_lines import Line, StyledRun, wrap

MIN_COLUMN_CELLS = 10  # columns are not narrowed further
_COLUMN_SEPARATOR = StyledRun(" │ ", "table")


class Table(Block):
    """Table; `alignments`: left, right or center, per column. Rows may be shorter than the head."""

    def __init__(self, head: Sequence[str], alignments: Sequence[str], body: Sequence[Sequence[str]]) -> None:
        self.head = head
        self.alignments = alignments
        self.body = body

    def _layout(self, width: int) -> Sequence[Line]:
        head = [inline(cell, "strong") for cell in self.head]
        body = [[inline(cell) for cell in row] for row in self.body]
        natural = [_widest(column) for column in zip_longest(head, *body, fillvalue=())]
        widths = _fit_widths(natural, width - 3 * (len(natural) - 1))
        if widths is None:
            return self._fields(head, body, width)
        rule = Line((StyledRun("─┼─".join("─" * cells for cells in widths), "table"),), 1)
        rows = [self._row(row, widths) for row in body]
        separates_rows = any(len(row) > 1 for row in rows)
        lines = self._row(head, widths)
        for number, row in enumerate(rows):
            lines += [rule, *row] if separates_rows or not number else row
        return lines

    def _row(self, cells: Sequence[Sequence[StyledRun]], widths: Sequence[int]) -> list[Line]:
        padded = [*cells, *[()] * (len(widths) - len(cells))]
        columns = [wrap(cell, width) for cell, width in zip(padded, widths, strict=True)]
        lines = []
        for pieces in zip_longest(*columns, fillvalue=Line()):
            runs: list[StyledRun] = []
            for number, (piece, width) in enumerate(zip(pieces, widths, strict=True)):
                runs += [_COLUMN_SEPARATOR] if number else []
                runs += self._padded(piece, width, number)
            lines.append(Line(tuple(runs)))
        return lines

    def _padded(self, piece: Line, width: int, column: int) -> list[StyledRun]:
        space = width - piece.width
        before = {"right": space, "center": space // 2}.get(self.alignments[column], 0)
        after = 0 if column == len(self.alignments) - 1 else space - before
        padded = [StyledRun(" " * before), *piece.runs, StyledRun(" " * after)]
        return [run for run in padded if run.text]

    def _fields(
        self, head: list[tuple[StyledRun, ...]], body: list[list[tuple[StyledRun, ...]]], width: int
    ) -> list[Line]:
        """Return each row as a paragraph of "name: value" lines."""
        if not body:
            return [line for name in head for line in wrap(name, width)]
        lines: list[Line] = []
        for number, row in enumerate(body):
            lines += [Line()] if number else []
            for name, cell in zip(head, row, strict=False):
                colon = [StyledRun(": ", "strong")] if name else []
                lines += wrap([*name, *colon, *cell], width) if cell or number == 0 else []
        return lines


def _widest(cells: Sequence[Sequence[StyledRun]]) -> int:
    return max((line.width for cell in cells for line in wrap(cell, 1_000_000)), default=0) or 1


def _fit_widths(natural: list[int], room: int) -> list[int] | None:
    """Return the widths of the columns, the widest narrowed first; None if they do not fit."""
    if sum(min(cells, MIN_COLUMN_CELLS) for cells in natural) > room:
        return None
    low, high = MIN_COLUMN_CELLS, max(natural)
    while low < high:
        limit = (low + high + 1) // 2
        fits = sum(min(cells, limit) for cells in natural) <= room
        low, high = (limit, high) if fits else (low, limit - 1)
    widths = [min(cells, low) for cells in natural]
    for column, cells in enumerate(natural):
        if widths[column] < cells and sum(widths) < room:
            widths[column] += 1
    return widths
