"""Growing message as sanitised lines; only the end of the text is read and laid out again."""

from collections.abc import Iterator, Sequence

from localdflash.tui.block_layout import Block
from localdflash.tui.block_reader import MarkdownReader, PlainTextReader
from localdflash.tui.fence import Code
from localdflash.tui.styled_lines import Line


class MarkdownDocument:
    """Markdown document that may grow; `plain` disables markup, for text typed by the user."""

    def __init__(self, *, plain: bool = False) -> None:
        self.source = ""
        self._reader: MarkdownReader | PlainTextReader = PlainTextReader() if plain else MarkdownReader()
        self._finished = False
        self._thoughts_open = False
        self._is_read = True  # whether the reader has all of `source`
        self._width = 0
        self._lines: list[Line] = []
        self._final = (0, 0)  # number of final blocks laid out, and of their lines
        self._stale = False  # whether lines of final blocks changed
        self.first_changed = 0  # row, in the last call of `lines`

    def append(self, text: str) -> None:
        """Append text, in pieces of any size, also after `finish`."""
        self.source += text
        self._is_read = self._is_read and not text
        self._finished = self._finished and not text

    def finish(self) -> None:
        """Mark the text as complete; the blocks at its end become final."""
        self._finished, self._is_read = True, False

    def show_thoughts(self, unfolded: bool) -> None:
        """Unfold or fold the thinking."""
        self._stale |= unfolded != self._thoughts_open
        self._thoughts_open = unfolded

    def fences(self) -> Sequence[Code]:
        """Return the fenced code blocks, in order."""
        self._read()
        return [code for _, code in self._codes() if code.number]

    def lines(self, width: int) -> Sequence[Line]:
        """Return the lines at this width; the next call changes the list."""
        width = max(1, width)
        self._read()
        before, base = self._lines, 0
        if width != self._width:
            before, self._width, self._final, self._lines = [], width, (0, 0), []
        elif self._stale:
            self._final, self._lines = (0, 0), []
        else:
            base = self._final[1]
            before = self._lines[base:]
            del self._lines[base:]
        self._stale = False
        for block in self._reader.final[self._final[0] :]:
            self._put(block)
        self._final = (len(self._reader.final), len(self._lines))
        for block in self._reader.tail:
            self._put(block)
        self.first_changed = base + _first_difference(before, self._lines, base)
        return self._lines

    def highlight_again(self) -> None:
        """Highlight code whose lexer was not loaded before."""
        for block, code in self._codes():
            if code.highlight_again():
                block.drop_cache()
                self._stale = True

    def _read(self) -> None:
        if not self._is_read:
            self._reader.read(self.source, finished=self._finished)
            self._is_read = True
        if self._reader.thoughts:
            self._reader.thoughts.is_unfolded = self._thoughts_open

    def _codes(self) -> Iterator[tuple[Block, Code]]:
        for block in (*self._reader.final, *self._reader.tail):
            yield from ((block, part) for part in block.parts() if isinstance(part, Code))

    def _put(self, block: Block) -> None:
        lines = block.lines(self._width)
        if block.gap and self._lines and lines:
            self._lines.append(Line())
        self._lines += lines


def _first_difference(before: Sequence[Line], lines: Sequence[Line], base: int) -> int:
    """Return the index of the first difference, counted from `base`, where `before` begins."""
    for place, old in enumerate(before):
        if base + place >= len(lines) or (old is not lines[base + place] and old != lines[base + place]):
            return place
    return len(before)
