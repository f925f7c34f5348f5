"""Draw tables with plain characters."""


class Column:
    """The title and the alignment of a column."""

    ALIGNMENTS = {"left": "<", "right": ">", "center": "^"}

    def __init__(self, title, align="left", max_width=None):
        if align not in self.ALIGNMENTS:
            raise ValueError(f"unknown alignment: {align!r}")
        self.title = title
        self.align = align
        self.max_width = max_width

    def fit(self, text, width):
        """Pad ``text`` to ``width`` characters, or cut it and mark the cut with three
        dots.
        """
        if len(text) > width:
            text = text[:max(0, width - 3)] + "..."
        return format(text, f"{self.ALIGNMENTS[self.align]}{width}")


class Table:
    """Rows of cells below a header."""

    def __init__(self, *columns):
        self.columns = [Column(c) if isinstance(c, str) else c for c in columns]
        self.rows = []

    def add_row(self, *cells):
        """Append a row. The number of cells must be the number of columns."""
        if len(cells) != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} cells, got {len(cells)}")
        row = ["" if cell is None else str(cell) for cell in cells]
        self.rows.append(row)

    def widths(self):
        """Return the width of each column, which is the length of its longest cell
        within the limit of the column.
        """
        result = []
        for index, column in enumerate(self.columns):
            width = len(column.title)
            for row in self.rows:
                width = max(width, len(row[index]))
            if column.max_width is not None:
                width = min(width, column.max_width)
            result.append(width)
        return result

    def render(self):
        """Return the whole table as a string."""
        widths = self.widths()
        border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
        lines = [border]
        titles = [column.title for column in self.columns]
        for cells in [titles, *self.rows]:
            parts = []
            for column, cell, width in zip(self.columns, cells, widths):
                parts.append(column.fit(cell, width))
            lines.append("| " + " | ".join(parts) + " |")
            if cells is titles:
                lines.append(border)
        lines.append(border)
        return "\n".join(lines)
