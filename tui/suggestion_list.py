"""The list over the prompt while a command or a file is being typed. It never has the focus: the prompt moves it.

It floats over what is above the prompt, so that nothing moves when it opens; in a low terminal it has fewer rows.
"""

from collections.abc import Callable, Sequence

from rich.cells import cell_len, chop_cells
from textual import events
from textual.content import Content
from textual.widget import Widget

from localdflash.text.sanitize import sanitize
from localdflash.tui.triggers import PromptSuggestion

MOST_ROWS = 8
_GAP = 2  # cells between a label and its hint
_LEAST_HINT = 12  # cells: a shorter hint says nothing


class Suggestions(Widget):
    """Rows to pick from; hidden while there are none."""

    DEFAULT_CSS = """
    Suggestions {
        display: none;
        overlay: screen;
        constrain: inside inside;
        width: 1fr;
        height: auto;
        max-height: 8;
        background: $panel;
        color: $foreground;
    }
    """

    def __init__(self, pick: Callable[[PromptSuggestion], None]) -> None:
        """`pick` is called when a row is clicked."""
        super().__init__()
        self._pick = pick
        self._rows: Sequence[PromptSuggestion] = ()
        self._note = ""
        self._at = self._top = self._height = 0

    @property
    def is_open(self) -> bool:
        """Whether it is shown."""
        return bool(self.display)

    @property
    def chosen(self) -> PromptSuggestion | None:
        """The row that a key would pick."""
        return self._rows[self._at] if self._rows else None

    @property
    def rows(self) -> Sequence[PromptSuggestion]:
        """All rows, also those scrolled out of view."""
        return self._rows

    def show(self, rows: Sequence[PromptSuggestion], *, above: int, note: str = "") -> None:
        """Show these rows, the first one chosen, or a note if there are none; `above` is the number of lines there."""
        self._rows, self._note, self._at, self._top = rows, note, 0, 0
        self._height = max(1, min(MOST_ROWS, len(rows) or 1, above))
        self.styles.offset = (0, -self._height)
        self.display = bool(rows or note)
        self.refresh(layout=True)

    def close(self) -> None:
        """Hide the list."""
        if self.display:
            self._rows, self._note, self.display = (), "", False

    def move(self, step: int) -> None:
        """Choose another row; the ends are joined."""
        if not self._rows:
            return
        self._at = (self._at + step) % len(self._rows)
        self._top = min(max(self._top, self._at - self._height + 1), self._at)
        self.refresh()

    def get_content_height(self, *_: object) -> int:
        """As many rows as there is room for."""
        return self._height if self._rows or self._note else 0

    def render(self) -> Content:
        """The rows in view."""
        width = self.size.width
        if not self._rows:
            return Content.styled(_cut(f" {sanitize(self._note)}", width), "$text-muted")
        shown = self._rows[self._top : self._top + self._height]
        return Content("\n").join(_row(row, width, self._top + number == self._at) for number, row in enumerate(shown))

    def on_click(self, event: events.Click) -> None:
        """Pick the row that was clicked."""
        row = self._top + event.y
        if row < len(self._rows):
            self._at = row
            self._pick(self._rows[row])


def _row(row: PromptSuggestion, width: int, chosen: bool) -> Content:
    """`▸ label  hint`, as much as fits; a long label keeps its end, which tells it from others."""
    room = max(width - 3, 1)
    label, marked = sanitize(row.label), row.marked
    if label != row.label:
        marked = ()
    if (over := cell_len(label) - room) > 0:
        kept = _end(label, cell_len(label) - over - 1)
        lost = len(label) - len(kept)
        label, marked = f"…{kept}", tuple(at - lost + 1 for at in marked if at >= lost)
    content = Content(f"{'▸' if chosen else ' '} {label}")
    for at in marked:
        content = content.stylize("bold $primary underline", at + 2, at + 3)
    left = width - content.cell_length - _GAP - 1
    if row.hint and left >= _LEAST_HINT:
        content = Content.assemble(content, " " * _GAP, (_cut(sanitize(row.hint), left), "$text-muted"))
    content = content.pad_right(max(0, width - content.cell_length))
    return content.stylize_before("$block-cursor-foreground on $block-cursor-background") if chosen else content


def _cut(text: str, width: int) -> str:
    """The beginning of a text, with an ellipsis if something is left out."""
    if cell_len(text) <= width:
        return text
    return f"{chop_cells(text, max(width - 1, 1))[0]}…"


def _end(text: str, width: int) -> str:
    """The last so many cells of a text."""
    kept = len(text)
    while kept and cell_len(text[kept - 1 :]) <= width:
        kept -= 1
    return text[kept:]
