"""A diff as rows: old and new line number, a sign, the line. Only what is on the screen is laid out.

Long lines scroll to the right while numbers and signs stay. Signs repeat what colours say.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from localdflash.text.sanitize import sanitize

if TYPE_CHECKING:
    from localdflash.chat.file_text import ShownHunk

MAX_LINE_CHARS = 4_000  # characters of a line that are shown
_TAB = 4
_SCROLL_CELLS = 8  # cells to the side
_MIN_TWO_NUMBERS_CELLS = 60  # cells: below, one number is enough
_STYLES = {"+": "added", "-": "removed", "@": "place", "\\": "remark", " ": "same"}


class _Row(NamedTuple):
    """Row of a diff. `old` and `new` are line numbers from 1, or 0; `sign` is a key of `_STYLES`."""

    old: int
    new: int
    sign: str
    text: str


class DiffView(ScrollView):
    """Scrollable view of the hunks of one file."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"diff-view--{look}" for look in (*_STYLES.values(), "number")}
    DEFAULT_CSS = """
    DiffView {
        height: 1fr; scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1;
        .diff-view--added { color: $success; background: $success 12%; }
        .diff-view--removed { color: $error; background: $error 12%; }
        .diff-view--same { color: $foreground; }
        .diff-view--number { color: $text-muted; }
        .diff-view--place, .diff-view--remark { color: $text-muted; text-style: italic; }
        &:ansi .diff-view--added, &:ansi .diff-view--removed { background: transparent; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[_Row] = []
        self._digits = 1
        self._widest = 0

    def show(self, hunks: Sequence["ShownHunk"]) -> None:
        """Show another file, from its first row on."""
        self._rows = [row for hunk in hunks for row in _rows(hunk)]
        self._digits = len(str(max((max(row.old, row.new) for row in self._rows), default=0)))
        self._widest = max((_width(row.text) for row in self._rows), default=0)
        self._arrange()
        self.scroll_to(0, 0, animate=False, force=True)
        self.refresh()

    def on_resize(self) -> None:
        """Lay the numbers out again: their width depends on that of the view."""
        self._arrange()

    def action_scroll_left(self) -> None:
        """Scroll by several columns, so that a key press is worth it."""
        self.scroll_relative(x=-_SCROLL_CELLS, animate=False)

    def action_scroll_right(self) -> None:
        """See `action_scroll_left`."""
        self.scroll_relative(x=_SCROLL_CELLS, animate=False)

    def _arrange(self) -> None:
        self.virtual_size = Size(self._gutter + self._widest, len(self._rows))

    @property
    def _gutter(self) -> int:
        """Return the cells of numbers and sign."""
        return self._digits + 3 if self.size.width < _MIN_TWO_NUMBERS_CELLS else 2 * self._digits + 4

    def render_line(self, y: int) -> Strip:
        """Return one row of the screen."""
        left, top = self.scroll_offset
        width = self.scrollable_content_region.width
        if top + y >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[top + y]
        style = self.get_component_rich_style(f"diff-view--{_STYLES[row.sign]}")
        number = self.get_component_rich_style("diff-view--number")
        sign = row.sign if row.sign in "+-" else " "
        gutter = [Segment(self._numbers(row), number), Segment(f"{sign} ", style)]
        line = Strip([Segment(shown(row.text), style)]).crop(left, left + max(width - self._gutter, 0))
        return Strip([*gutter, *line]).adjust_cell_length(width, style)

    def _numbers(self, row: _Row) -> str:
        old, new = (str(number) if number else "" for number in (row.old, row.new))
        if self.size.width < _MIN_TWO_NUMBERS_CELLS:
            return f"{new or old:>{self._digits}} "
        return f"{old:>{self._digits}} {new:>{self._digits}} "


def shown(text: str) -> str:
    """Make a line safe to show: no control characters, tabs as blanks, cut if absurdly long."""
    rest = len(text) - MAX_LINE_CHARS
    if rest > 0:
        text = f"{text[:MAX_LINE_CHARS]} … {rest} more characters"
    if text.isascii() and text.isprintable():
        return text
    return sanitize(text.replace("\r", "\u240d").expandtabs(_TAB))


def _width(text: str) -> int:
    return len(text) if len(text) <= MAX_LINE_CHARS and text.isascii() and text.isprintable() else cell_len(shown(text))


def _rows(hunk: "ShownHunk") -> Iterator[_Row]:
    old, new = hunk.old, hunk.new
    removed = sum(line[0] in " -" for line in hunk.lines)
    added = sum(line[0] in " +" for line in hunk.lines)
    yield _Row(0, 0, "@", f"@@ -{old},{removed} +{new},{added} @@")
    for line in hunk.lines:
        sign = line[0]
        yield _Row(old if sign in " -" else 0, new if sign in " +" else 0, sign, line[1:])
        old += sign in " -"
        new += sign in " +"
