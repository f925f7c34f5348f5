"""Blocks of a Markdown text and the model's thoughts, and their layout as lines of a given width."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from localdflash.tui.inline import clean, inline
from localdflash.tui.styled_lines import Line, StyledRun, wrap

MIN_TEXT_CELLS = 8  # bars and indents are left out if less would remain for the text
_QUOTE_BAR, _THOUGHT_BAR = StyledRun("│ ", "quote"), StyledRun("│ ", "muted")
_TASK = re.compile(r"\[([ xX])\][ \t]+")


class Block(ABC):
    """Base class of blocks; `gap` puts a blank line before the block. Lines are cached for the last width."""

    gap = False
    _grows = False  # growing blocks cache their lines in `_layout`
    _width = 0
    _lines: Sequence[Line] = ()

    def lines(self, width: int) -> Sequence[Line]:
        """Return the block's lines, without the gap."""
        if self._grows or width != self._width:
            self._lines, self._width = self._layout(width), width
        return self._lines

    def drop_cache(self) -> None:
        """Discard the cached lines of the block and of all blocks inside it."""
        for part in self.parts():
            part._width = 0

    @abstractmethod
    def _layout(self, width: int) -> Sequence[Line]: ...

    def parts(self) -> Iterator["Block"]:
        """Yield the block itself and all blocks inside it, in order."""
        yield self


class Paragraph(Block):
    """Paragraph, or heading if `level` is 1 to 6."""

    def __init__(self, content: str, level: int = 0) -> None:
        self.content = content
        self.level = level

    def _layout(self, width: int) -> Sequence[Line]:
        return wrap(inline(self.content, f"heading{self.level}" if self.level else ""), width)


class HorizontalRule(Block):
    """A horizontal rule."""

    def _layout(self, width: int) -> Sequence[Line]:
        return [Line((StyledRun("─" * width, "rule"),), 1)]


class Container(Block):
    """Base class of blocks that contain blocks."""

    def __init__(self, children: Sequence[Block]) -> None:
        self.children = children

    def parts(self) -> Iterator[Block]:
        """Yield the block itself and all blocks inside it, in order."""
        yield self
        for child in self.children:
            yield from child.parts()


class Quote(Container):
    """Block quote: blocks behind a bar."""

    def _layout(self, width: int) -> Sequence[Line]:
        inner = _width_after(width, 2)
        rows = stack(self.children, inner)
        return rows if inner == width else [add_prefix(_QUOTE_BAR, line) for line in rows]


class Item(Container):
    """List item; `marker` is its bullet, or its number as written."""

    def __init__(self, marker: str, children: Sequence[Block]) -> None:
        super().__init__(children)
        first = children[0] if children else None
        task = _TASK.match(first.content) if isinstance(first, Paragraph) else None
        if task and isinstance(first, Paragraph):
            first.content = first.content[task.end() :]
        self._task = bool(task)
        self._marker = StyledRun(f"[{task[1].lower()}] " if task else f"{clean(marker)} ", "bullet")

    def _layout(self, width: int) -> Sequence[Line]:
        indent = cell_len(self._marker.text)
        inner = _width_after(width, indent)
        rows = stack(self.children, inner) or [Line()]
        if inner == width:
            return [*wrap([self._marker], width), *rows]
        first, *rest = rows
        decoration = 0 if self._task else first.decoration + 1
        first = Line((self._marker, *first.runs), decoration, first.ending)
        blank = StyledRun(" " * indent)
        return [first, *(add_prefix(blank, line) if line.runs else line for line in rest)]


class GrowingBlock(Block):
    """Base class of blocks that grow by lines; only new lines and the incomplete last one are laid out."""

    _grows = True

    def __init__(self) -> None:
        self._runs: list[Sequence[StyledRun]] = []  # styled runs of each complete line
        self._rows: list[Line] = []  # screen rows of the complete lines
        self._laid_out = 0  # number of complete lines in `_rows`

    def _layout(self, width: int) -> Sequence[Line]:
        if width != self._width:
            self._width, self._laid_out, self._rows = width, 0, self._label(width)
        for runs in self._runs[self._laid_out :]:
            self._rows += self._wrap_line(runs)
        self._laid_out = len(self._runs)
        open_line = self._open_runs()
        return [*self._rows, *self._wrap_line(open_line)] if open_line else self._rows

    @abstractmethod
    def _open_runs(self) -> Sequence[StyledRun]: ...

    def _label(self, width: int) -> list[Line]:
        return []

    def _wrap_line(self, runs: Sequence[StyledRun]) -> Sequence[Line]:
        return wrap(runs, self._width)


class Verbatim(GrowingBlock):
    """Unformatted text that may grow."""

    def __init__(self, style: str = "") -> None:
        super().__init__()
        self._style = style
        self._open = ""

    def append(self, text: str) -> None:
        """Append text, in pieces of any size."""
        *complete, self._open = (self._open + text).split("\n")
        self._runs += map(self._styled, complete)

    def _open_runs(self) -> Sequence[StyledRun]:
        return self._styled(self._open)

    def _styled(self, line: str) -> Sequence[StyledRun]:
        shown = clean(line)
        return [StyledRun(shown, self._style)] if shown else []


def stack(blocks: Sequence[Block], width: int) -> list[Line]:
    """Lay blocks out one below the other."""
    rows: list[Line] = []
    for block in blocks:
        if block.gap and rows:
            rows.append(Line())
        rows += block.lines(width)
    return rows


def add_prefix(prefix: StyledRun, line: Line) -> Line:
    """Put a decoration in front of a line."""
    return Line((prefix, *line.runs), line.decoration + 1, line.ending)


def _width_after(width: int, prefix: int) -> int:
    """Return the width after a prefix, or the whole width if too little would remain."""
    return width - prefix if width - prefix >= MIN_TEXT_CELLS else width


class Thoughts(Block):
    """Model's thinking before an answer. Until `has_ended`, the folded line shows the newest words."""

    _grows = True

    def __init__(self) -> None:
        self.has_ended = False
        self.is_unfolded = False
        self._text = ""
        self._verbatim = Verbatim("muted")

    def set_text(self, text: str) -> None:
        """Set the full text of the thinking so far."""
        text = text.lstrip("\r\n")
        if not text.startswith(self._text):
            self._text, self._verbatim = "", Verbatim("muted")
        self._verbatim.append(text[len(self._text) :])
        self._text = text

    def _layout(self, width: int) -> Sequence[Line]:
        text = self._text.rstrip()
        if self.has_ended and not text:
            return []
        if not self.is_unfolded:
            return [self._folded(text, width)]
        head = wrap([StyledRun(f"▾ {self._title(text)}", "muted")], width)
        inner = _width_after(width, 2)
        rows = list(self._verbatim.lines(inner))
        while rows and not rows[-1].text.strip():
            rows.pop()
        return [
            *(Line(line.runs, len(line.runs), line.ending) for line in head),
            *(rows if inner == width else [add_prefix(_THOUGHT_BAR, line) for line in rows]),
        ]

    def _title(self, text: str) -> str:
        if not self.has_ended:
            return "Thinking…"
        count = len(text.split())
        return f"Thought for {count} word{'' if count == 1 else 's'}"

    def _folded(self, text: str, width: int) -> Line:
        title = f"▸ {self._title(text)}"
        if cell_len(title) > width:
            return Line((StyledRun(wrap([StyledRun(title)], width, words=False)[0].text, "muted"),), 1)
        last = "" if self.has_ended else clean(text[text.rfind("\n") + 1 :][-width:]).strip()
        while last and cell_len(title) + 1 + cell_len(last) > width:
            last = last[1:]
        return Line((StyledRun(f"{title} {last}".rstrip(), "muted"),), 1)
