"""Widget that scrolls and draws chat entries, with the selection.

Only entries near the screen are laid out; the heights of other entries are estimates. If an estimate was wrong or the
width changes, the visible text stays in place: with `following` the end stays in view, otherwise the top row does.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker

from localdflash.tui import highlight
from localdflash.tui.column import Column, RowPosition
from localdflash.tui.entry import ChatView
from localdflash.tui.painting import Painter, Palette
from localdflash.tui.styled_lines import StyledRun

_GUTTER_CELLS = 2  # free cells left of the text
_MIN_GUTTER_COLUMNS = 30  # narrower screens have no gutter
_END = 1 << 62  # greater than any offset
_MAX_STRIPS = 1_000  # cached rows
_MORE_HINT = "▾ more below "


class Scroller(ScrollView):
    """Scrollable list of chat entries that lays out only the entries near the screen."""

    following: reactive[bool] = reactive(True, init=False)

    def __init__(self) -> None:
        super().__init__()
        self._column = Column()
        self._painter: Painter | None = None
        self._highlighted: int | None = None  # index of the entry with a bar next to it
        self._arranging = False
        self._lexer_worker: Worker[None] | None = None

    @property
    def _text_size(self) -> Size:
        """Return the size of the text area, without the scrollbar."""
        return self.scrollable_content_region.size

    @property
    def _rows(self) -> int:
        """Return the number of visible rows; 0 before the first layout."""
        return self._text_size.height if self._text_size.width else 0

    def _kept_position(self) -> RowPosition | None:
        """Return the position to keep in view: that of the top row, or None to follow the end."""
        return None if self.following else self._column.position(self.scroll_offset.y)

    @contextmanager
    def _keeping_position(self) -> Iterator[None]:
        """Keep the scroll position through a change, then redraw."""
        position = self._kept_position()
        yield
        self._arrange(position)
        self.refresh()

    def _arrange(self, position: RowPosition | None) -> None:
        """Lay out the screen with this position as its top row, or with None its end, and scroll there."""
        if not self._rows or self._arranging:
            return
        self._arranging = True
        try:
            if position is None:
                self._column.lay_out_end(self._rows)
                first = self._column.height
            else:
                first = self._column.lay_out_from(position, self._rows)
            self._set_height(self._column.height)
            self.scroll_to(y=first, force=True)
            self._column.drop_far(self.scroll_offset.y, self._rows)
        finally:
            self._arranging = False
        self._load_missing_lexers()

    def _set_height(self, rows: int) -> None:
        """Set the virtual height without the full layout that assigning `virtual_size` causes."""
        size = Size(self.size.width, rows)
        if size == self.virtual_size:
            return
        self.set_reactive(Widget.virtual_size, size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = rows
            self.vertical_scrollbar.window_size = self._rows

    def scroll_to(self, x: float | None = None, y: float | None = None, **options: object) -> None:
        """Scroll without an animation, because rows may move during an animation."""
        self._scroll_to(x, y, animate=False, force=bool(options.get("force", False)))

    def _draw(self, row: int) -> None:
        """Redraw the visible rows from `row` on."""
        top = max(0, row - self.scroll_offset.y)
        if top < self.size.height:
            self.refresh(Region(0, top, self.size.width, self.size.height - top))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Lay out the rows that were scrolled into view."""
        super().watch_scroll_y(old_value, new_value)
        if self._arranging or not self._rows:
            return
        self.following = self.scroll_offset.y >= self.max_scroll_y
        if not self._column.is_laid_out_around(self.scroll_offset.y, self._rows):
            self._arrange(self._kept_position())
            self.refresh()

    def action_to_end(self) -> None:
        """Scroll to the end and follow it."""
        self.following = True
        self._arrange(None)
        self.refresh()

    def on_resize(self) -> None:
        """Lay out for a new width; a change of the height alone moves no rows."""
        width = self._text_size.width - (_GUTTER_CELLS + 1 if self._has_gutter else 0)
        self.set_view(width=max(1, width))

    @property
    def _has_gutter(self) -> bool:
        return self._text_size.width >= _MIN_GUTTER_COLUMNS

    @property
    def view(self) -> ChatView:
        """Return the view options."""
        return self._column.view

    def set_view(self, **changes: Any) -> None:
        """Change view options and lay out again."""
        view = replace(self.view, **changes)
        with self._keeping_position():
            if view != self._column.view:
                self._painter = None
                self._column.reset(view)

    def _load_missing_lexers(self) -> None:
        """Load missing lexers in a thread, then highlight the code again."""
        if highlight.missing_languages and (self._lexer_worker is None or self._lexer_worker.is_finished):
            self._lexer_worker = self.run_worker(self._load_lexers, exit_on_error=False)

    async def _load_lexers(self) -> None:
        while highlight.missing_languages:
            for language in tuple(highlight.missing_languages):
                await asyncio.to_thread(highlight.load, language)
            for index in sorted(self._column.laid_out):
                self._column.entries[index].highlight_again()
                if changed := self._column.lay_out(index):
                    self._draw(self._column.top(index) + changed.start)

    def notify_style_update(self) -> None:
        """Discard the painter after a change of theme or widget state."""
        super().notify_style_update()
        self._painter = None

    def _current_painter(self) -> Painter:
        if self._painter is None:
            selection_style = self.screen.get_component_rich_style("screen--selection")
            edge = self._text_size.width - self._has_gutter
            self._painter = Painter(Palette(self.app.theme_variables), self.rich_style, selection_style, edge)
            self._strips = lru_cache(_MAX_STRIPS)(self._painter.strip)
        return self._painter

    def render_line(self, y: int) -> Strip:
        """Return one row of the screen."""
        painter, width = self._current_painter(), self.size.width
        row = self.scroll_offset.y + y
        if row >= self._column.height:
            return Strip.blank(width, painter.base)
        strip = self._strip(*self._column.entry_at(row), painter)
        hint_start = self._text_size.width - len(_MORE_HINT)
        if self.following or y != self._rows - 1 or row >= self._column.height - 1 or hint_start < 0:
            return strip
        hint = Segment(_MORE_HINT, painter.base + painter.palette["more"])
        return Strip([*strip.crop(0, hint_start), hint]).adjust_cell_length(width, painter.base)

    def _strip(self, index: int, row: int, painter: Painter) -> Strip:
        entry, width = self._column.entries[index], self.size.width
        if not entry.is_laid_out(self._column.view):
            return Strip.blank(width, painter.base)
        selection = self.text_selection
        selected = _span(selection, index) if selection else None
        bar = "│ " if index == self._highlighted else "  "
        gutter = StyledRun(bar, "bar") if self._has_gutter else StyledRun("")
        return self._strips(entry.line(row), index, entry.offset(row), selected, gutter, width)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text without decoration and wraps."""
        texts: list[str] = []
        for index in range(len(self._column.entries)):
            if span := _span(selection, index):
                texts.append(self._column.text_between(index, *span))
        return "\n\n".join(text.strip("\n") for text in texts), "\n"


def _span(selection: Selection, index: int) -> tuple[int, int] | None:
    """Return the selected offsets of the entry with this index, None if there are none (see `tui.painting`)."""
    start, end = selection
    if (start is not None and index < start.y) or (end is not None and index > end.y):
        return None
    low = start.x if start is not None and start.y == index else 0
    return low, end.x if end is not None and end.y == index else _END
