"""Screen of Neovim: its UI protocol drawn into a grid of cells, with a picture at every flush."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Style = dict[str, Any]
FOREGROUND, BACKGROUND = "#d8dee9", "#1d2128"
CELL_WIDTH, CELL_HEIGHT = 8.4, 18


@dataclass
class Screen:
    """Grid of cells; `pictures` has the rows at every flush."""

    width: int
    height: int
    pictures: list[list[str]] = field(default_factory=list)
    cursor: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self._cells = [[(" ", 0)] * self.width for _ in range(self.height)]
        self._styles: dict[int, Style] = {0: {}}
        self._default: Style = {}

    def draw(self, batches: list[list[Any]]) -> None:
        """Draw a `redraw` notification."""
        for name, *events in batches:
            if handler := getattr(self, f"_on_{name}", None):
                for event in events:
                    handler(*event)

    def rows(self) -> list[str]:
        """Return the rows of text on the screen."""
        return ["".join(cell for cell, _ in row).rstrip() for row in self._cells]

    def find(self, text: str) -> tuple[int, Style] | None:
        """Return the row of a text and the style of its first character."""
        for number, row in enumerate(self._cells):
            # A wide character is followed by an empty cell: positions are counted in cells.
            cells = [cell for cell, _ in row]
            for column in range(len(cells)):
                if "".join(cells[column:]).startswith(text) and cells[column]:
                    return number, self._styles.get(row[column][1], {})
        return None

    def save(self, path: Path, rows: int | None = None) -> None:
        """Write an SVG of the first `rows` rows."""
        shown = self._cells[:rows]
        size = f'width="{self.width * CELL_WIDTH + 16:.0f}" height="{len(shown) * CELL_HEIGHT + 16}"'
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f'<rect {size} rx="6" fill="{BACKGROUND}"/>']
        parts.append('<g font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">')
        for number, row in enumerate(shown):
            parts += self._row(number, row)
        at, column = self.cursor
        if at < len(shown):
            x, y = 8 + column * CELL_WIDTH, 8 + at * CELL_HEIGHT
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="2" height="{CELL_HEIGHT}" fill="{FOREGROUND}"/>')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*parts, "</g>", "</svg>\n"]), encoding="utf-8")

    def _row(self, number: int, row: list[tuple[str, int]]) -> list[str]:
        parts, start = [], 0
        while start < len(row):
            style, end = row[start][1], start
            while end < len(row) and row[end][1] == style:
                end += 1
            parts += self._run(number, start, "".join(cell for cell, _ in row[start:end]), end - start, style)
            start = end
        return parts

    def _run(self, number: int, column: int, text: str, cells: int, style_id: int) -> list[str]:
        style = self._styles.get(style_id, {})
        front, back = _colour(style, "foreground", FOREGROUND), _colour(style, "background", "")
        if style.get("reverse"):
            front, back = back or BACKGROUND, front
        x, y, parts = 8 + column * CELL_WIDTH, 8 + number * CELL_HEIGHT, []
        width = cells * CELL_WIDTH
        if back:
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{CELL_HEIGHT}" fill="{back}"/>')
        if text.strip():
            look = f'fill="{front}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
            look += ' font-style="italic"' if style.get("italic") else ""
            look += ' font-weight="bold"' if style.get("bold") else ""
            parts.append(f'<text x="{x:.1f}" y="{y + 14}" {look}>{html.escape(text)}</text>')
        return parts

    def _on_grid_line(self, _: int, row: int, column: int, cells: list[list[Any]], *_more: Any) -> None:
        style = 0
        for text, *rest in cells:
            style = rest[0] if rest else style
            for _number in range(rest[1] if len(rest) > 1 else 1):
                self._cells[row][column] = (text, style)
                column += 1

    def _on_grid_scroll(self, _: int, top: int, bottom: int, left: int, right: int, rows: int, _columns: int) -> None:
        order = range(top, bottom - rows) if rows > 0 else range(bottom - 1, top - rows - 1, -1)
        for row in order:
            self._cells[row][left:right] = self._cells[row + rows][left:right]

    def _on_grid_clear(self, _: int) -> None:
        self._cells = [[(" ", 0)] * self.width for _ in range(self.height)]

    def _on_grid_cursor_goto(self, _: int, row: int, column: int) -> None:
        self.cursor = (row, column)

    def _on_hl_attr_define(self, number: int, style: Style, *_more: Any) -> None:
        self._styles[number] = style

    def _on_flush(self) -> None:
        self.pictures.append(self.rows())


def _colour(style: Style, name: str, otherwise: str) -> str:
    value = style.get(name)
    return otherwise if value is None else f"#{value:06x}"
