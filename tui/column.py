"""Column of chat entries; entries far from the screen have estimated heights."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from localdflash.chat.messages import Message
from localdflash.tui.entry import ChatEntry, ChatView

_PRELOADED_SCREENS = 1  # number of screens laid out above, and below, the visible one
_RETAINED_SCREENS = 4  # layouts more than this many screens away are dropped


@dataclass(frozen=True, slots=True)
class RowPosition:
    """Scroll position: a row of an entry, described so that it stays valid if the width changes."""

    index: int  # index of the entry
    offset: int  # offset of a character in the entry's copied text (see `tui.entry`)
    above: int = 0  # rows between this row and the row of that character, below it


class Column:
    """Column of chat entries, with the first row of each."""

    def __init__(self) -> None:
        self.entries: list[ChatEntry] = []
        self.view = ChatView(80)
        self._tops = [0]  # first row of each entry, then the total height
        self.laid_out: set[int] = set()  # indices of the entries that are laid out

    @property
    def height(self) -> int:
        """Return the number of rows of all entries."""
        return self._tops[-1]

    def top(self, index: int) -> int:
        """Return the first row of an entry."""
        return self._tops[index]

    def entry_at(self, row: int) -> tuple[int, int]:
        """Return the index of the entry with this row, and the row within it; the column must not be empty."""
        index = bisect_right(self._tops, row, hi=len(self.entries)) - 1
        return index, row - self._tops[index]

    def show(self, messages: Sequence[Message]) -> None:
        """Replace all messages."""
        self.entries = [ChatEntry(message, number) for number, message in enumerate(messages, 1)]
        self.reset()

    def add(self, message: Message | None) -> ChatEntry:
        """Append a message; None appends an entry that holds only notes by the program."""
        before = self.entries[-1].number if self.entries else 0
        entry = ChatEntry(message, before + 1 if message else before)
        entry.estimate(self.view)
        self.entries.append(entry)
        self._tops.append(self.height + entry.height)
        return entry

    def replace_last(self, message: Message) -> None:
        """Replace the last message."""
        last = len(self.entries) - 1
        self.entries[last] = ChatEntry(message, self.entries[last].number)
        self.entries[last].estimate(self.view)
        self.laid_out.discard(last)
        self._update_tops(last)

    def reset(self, view: ChatView | None = None) -> None:
        """Discard all layout, and use another view if one is given."""
        self.view = view or self.view
        for entry in self.entries:
            entry.drop_layout()
            entry.estimate(self.view)
        self.laid_out.clear()
        self._update_tops(0)

    def lay_out(self, index: int) -> range:
        """Lay out one entry; return its changed rows."""
        entry = self.entries[index]
        before = entry.height
        changed = entry.lay_out(self.view)
        self.laid_out.add(index)
        if entry.height != before or index == len(self.entries) - 1:
            self._update_tops(index)
        return changed

    def lay_out_from(self, position: RowPosition, rows: int) -> int:
        """Lay out the screen that begins at a position, and one above and below it; return the screen's first row."""
        while True:
            first = self.row(position)
            low, high = max(0, first - _PRELOADED_SCREENS * rows), first + (1 + _PRELOADED_SCREENS) * rows
            if not self._lay_out_between(low, high):
                return first

    def lay_out_end(self, rows: int) -> None:
        """Lay out the last screen, and one screen above it."""
        while self._lay_out_between(max(0, self.height - (1 + _PRELOADED_SCREENS) * rows), self.height):
            pass

    def is_laid_out_around(self, first: int, rows: int) -> bool:
        """Return whether the entries within one screen of the screen that begins at row `first` are laid out."""
        margin = _PRELOADED_SCREENS * rows
        return not self._not_laid_out(max(0, first - margin), first + rows + margin)

    def _lay_out_between(self, low: int, high: int) -> bool:
        """Lay out the entries with rows from `low` to before `high`; return whether any was not laid out yet."""
        missing = self._not_laid_out(low, high)
        for index in reversed(missing):
            self.lay_out(index)
        return bool(missing)

    def _not_laid_out(self, low: int, high: int) -> list[int]:
        return [index for index in self.between(low, high) if not self.entries[index].is_laid_out(self.view)]

    def between(self, low: int, high: int) -> range:
        """Return the indices of the entries with rows from `low` to before `high`."""
        if not self.entries:
            return range(0)
        return range(self.entry_at(low)[0], self.entry_at(max(low, min(high, self.height) - 1))[0] + 1)

    def drop_far(self, first: int, rows: int) -> None:
        """Drop the layout of entries far from the screen that begins at row `first`, except of streaming answers."""
        if not self.entries:
            return
        low, _ = self.entry_at(max(0, first - _RETAINED_SCREENS * rows))
        high, _ = self.entry_at(min(first + _RETAINED_SCREENS * rows, self.height - 1))
        for index in [index for index in self.laid_out if not low <= index <= high]:
            if not self.entries[index].is_growing:
                self.entries[index].drop_layout()
                self.laid_out.discard(index)

    def _update_tops(self, index: int) -> None:
        """Recompute the first rows of the entries from `index` on, after heights changed."""
        heights = (entry.height for entry in self.entries[index:])
        self._tops[index:] = accumulate(heights, initial=self._tops[index] if index else 0)

    def text_between(self, index: int, start: int, end: int | None) -> str:
        """Return the text of an entry between two offsets; a layout made for that is dropped again."""
        entry = self.entries[index]
        if entry.is_laid_out(self.view):
            return entry.text_between(start, end)
        height = entry.height
        entry.lay_out(self.view)
        text = entry.text_between(start, end)
        entry.drop_layout()
        entry.height = height
        return text

    def position(self, row: int) -> RowPosition:
        """Return the position of a row; if its entry is not laid out, the start of the entry."""
        if not self.entries:
            return RowPosition(0, 0)
        index, row = self.entry_at(max(0, min(row, self.height - 1)))
        entry = self.entries[index]
        if not entry.is_laid_out(self.view):
            return RowPosition(index, 0)
        offset = entry.offset(row)
        return RowPosition(index, offset, entry.row(offset) - row)

    def row(self, position: RowPosition) -> int:
        """Return the current row of a position."""
        if position.index >= len(self.entries):
            return 0
        entry, top = self.entries[position.index], self._tops[position.index]
        if not entry.is_laid_out(self.view):
            return top
        return top + max(0, entry.row(position.offset) - position.above)
