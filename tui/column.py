"""Entries of a conversation one below the other; the heights of most of them are estimates."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from localdflash.chat.messages import Message
from localdflash.tui.entry import ChatEntry, ChatView

_PRELOADED_SCREENS = 1  # laid out above and below the screen
_RETAINED_SCREENS = 4  # beyond these, rows are dropped


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Row of an entry, `above` rows over the one with this text offset; valid across layouts and widths."""

    index: int
    offset: int
    above: int = 0


class Column:
    """Column of chat entries, with the row at which each begins."""

    def __init__(self) -> None:
        self.entries: list[ChatEntry] = []
        self.view = ChatView(80)
        self._tops = [0]  # the first row of each entry, and the height of all
        self.laid: set[int] = set()  # indices of the entries that are laid out

    @property
    def height(self) -> int:
        """Return the number of rows of all entries."""
        return self._tops[-1]

    def top(self, index: int) -> int:
        """Return the first row of an entry."""
        return self._tops[index]

    def at(self, row: int) -> tuple[int, int]:
        """Return the index of the entry with this row, and the row within it; there must be entries."""
        index = bisect_right(self._tops, row, hi=len(self.entries)) - 1
        return index, row - self._tops[index]

    def show(self, messages: Sequence[Message]) -> None:
        """Replace all messages."""
        self.entries = [ChatEntry(message, number) for number, message in enumerate(messages, 1)]
        self.guess()

    def add(self, message: Message | None) -> ChatEntry:
        """Append a message; None makes room for notes only."""
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
        self.laid.discard(last)
        self._sum_up(last)

    def guess(self, view: ChatView | None = None) -> None:
        """Discard all layout, and use another view if one is given."""
        self.view = view or self.view
        for entry in self.entries:
            entry.drop()
            entry.estimate(self.view)
        self.laid.clear()
        self._sum_up(0)

    def lay_out(self, index: int) -> range:
        """Lay out one entry; return those of its rows that changed."""
        entry = self.entries[index]
        before = entry.height
        changed = entry.lay_out(self.view)
        self.laid.add(index)
        if entry.height != before or index == len(self.entries) - 1:
            self._sum_up(index)
        return changed

    def settle(self, place: RowPlace, rows: int) -> int:
        """Lay out the screen that begins at the place, and around it; return the row at which it begins."""
        while True:
            first = self.row(place)
            low, high = max(0, first - _PRELOADED_SCREENS * rows), first + (1 + _PRELOADED_SCREENS) * rows
            if not self._lay_out_between(low, high):
                return first

    def settle_end(self, rows: int) -> None:
        """Lay out the screen that ends at the end, and above it."""
        while self._lay_out_between(max(0, self.height - (1 + _PRELOADED_SCREENS) * rows), self.height):
            pass

    def is_settled(self, first: int, rows: int) -> bool:
        """Return whether everything on the screen, and around it, is laid out."""
        return not self._not_laid(max(0, first - _PRELOADED_SCREENS * rows), first + (1 + _PRELOADED_SCREENS) * rows)

    def _lay_out_between(self, low: int, high: int) -> bool:
        """Lay out the entries with these rows; return whether any was not laid out yet."""
        missing = self._not_laid(low, high)
        for index in reversed(missing):
            self.lay_out(index)
        return bool(missing)

    def _not_laid(self, low: int, high: int) -> list[int]:
        return [index for index in self.between(low, high) if not self.entries[index].is_laid_out(self.view)]

    def between(self, low: int, high: int) -> range:
        """Return the entries with these rows."""
        if not self.entries:
            return range(0)
        return range(self.at(low)[0], self.at(max(low, min(high, self.height) - 1))[0] + 1)

    def drop_far(self, first: int, rows: int) -> None:
        """Free the rows of entries far from the screen."""
        if not self.entries:
            return
        low, _ = self.at(max(0, first - _RETAINED_SCREENS * rows))
        high, _ = self.at(min(first + _RETAINED_SCREENS * rows, self.height - 1))
        for index in [index for index in self.laid if not low <= index <= high]:
            if not self.entries[index].growing:
                self.entries[index].drop()
                self.laid.discard(index)

    def _sum_up(self, index: int) -> None:
        """Recompute where entries begin, from this one on, after heights changed."""
        heights = (entry.height for entry in self.entries[index:])
        self._tops[index:] = accumulate(heights, initial=self._tops[index] if index else 0)

    def copied(self, index: int, start: int, end: int | None) -> str:
        """Return the text of an entry between two offsets, without a lasting layout."""
        entry = self.entries[index]
        if entry.is_laid_out(self.view):
            return entry.copied(start, end)
        height = entry.height
        entry.lay_out(self.view)
        text = entry.copied(start, end)
        entry.drop()
        entry.height = height
        return text

    def place(self, row: int) -> RowPlace:
        """Return the place of a row; of an entry that is not laid out, the place of its beginning."""
        if not self.entries:
            return RowPlace(0, 0)
        index, row = self.at(max(0, min(row, self.height - 1)))
        entry = self.entries[index]
        if not entry.is_laid_out(self.view):
            return RowPlace(index, 0)
        offset = entry.offset(row)
        return RowPlace(index, offset, entry.row(offset) - row)

    def row(self, place: RowPlace) -> int:
        """Return the row that a place is at now."""
        if place.index >= len(self.entries):
            return 0
        entry, top = self.entries[place.index], self._tops[place.index]
        if not entry.is_laid_out(self.view):
            return top
        return top + max(0, entry.row(place.offset) - place.above)
