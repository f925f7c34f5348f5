"""A growing message as lines.

Reading and laying out cost what the end of the text costs, however long it is (see `reading`). `source` and the code of
fences are unchanged bytes; lines are sanitised copies. A document belongs to one thread; only `highlight.exact` may run
in another: `unsettled()` returns its arguments, and `settle` takes its result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localdflash.tui.block_layout import Block
from localdflash.tui.block_reader import AnswerReading, TypedReading
from localdflash.tui.fence import MAX_HIGHLIGHTED_LINES, Code, ShownFence
from localdflash.tui.styled_lines import Line, StyledRun

__all__ = ["HighlightJob", "MarkdownDocument", "ShownFence"]


@dataclass(frozen=True, slots=True)
class HighlightJob:
    """Ended fence to highlight again: `highlight.exact(language, lines)` may improve it."""

    number: int
    language: str
    lines: Sequence[str]


class MarkdownDocument:
    """Markdown document that may grow; `plain` disables markup, for text typed by the user."""

    def __init__(self, *, plain: bool = False) -> None:
        self.source = ""
        self._reading: AnswerReading | TypedReading = TypedReading() if plain else AnswerReading()
        self._finished = False
        self._thoughts_open = False
        self._fresh = True  # everything that was appended is read
        self._width = 0
        self._lines: list[Line] = []
        self._final = (0, 0)  # how many blocks, and their lines, are laid out for good
        self._stale = False  # lines of final blocks changed
        self._changed = 0

    def append(self, text: str) -> None:
        """Append text, in pieces of any size, also after `finish`."""
        self.source += text
        self._fresh = self._fresh and not text
        self._finished = self._finished and not text

    def finish(self) -> None:
        """Mark the text as complete, which settles the provisional blocks at its end."""
        self._finished, self._fresh = True, False

    @property
    def thoughts_open(self) -> bool:
        """Return whether the thinking is unfolded."""
        return self._thoughts_open

    @thoughts_open.setter
    def thoughts_open(self, unfolded: bool) -> None:
        self._stale |= unfolded != self._thoughts_open
        self._thoughts_open = unfolded

    @property
    def fences(self) -> Sequence[ShownFence]:
        """Return the fences in order; `first_line` is for the width of the last call of lines(), 80 before one."""
        lines = self.lines(self._width or 80)
        labels = [row for row, line in enumerate(lines) if any(run.style == "fence-label" for run in line.runs)]
        codes = [code for code in self._codes() if code.number]
        return [ShownFence(code.language, code.code, code.closed, row) for code, row in zip(codes, labels, strict=True)]

    def lines(self, width: int) -> Sequence[Line]:
        """Return the lines at this width, at least 1 cell. The list is the document's own; the next call changes it."""
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
        for block in self._reading.final[self._final[0] :]:
            self._put(block)
        self._final = (len(self._reading.final), len(self._lines))
        for block in self._reading.tail:
            self._put(block)
        self._changed = base + _first_difference(before, self._lines, base)
        return self._lines

    def changed_from(self) -> int:
        """Return the first line that the last call of lines() changed; the number of lines if it changed none."""
        return self._changed

    def unsettled(self) -> Sequence[HighlightJob]:
        """Return the fences that may be highlighted better, each returned once."""
        self._read()
        return [
            HighlightJob(code.number, code.language, [line.removesuffix("\n") for line in code.raw_lines])
            for code in self._codes()
            if code.number and code.closed and not code.settled and len(code.raw_lines) <= MAX_HIGHLIGHTED_LINES
        ]

    def settle(self, number: int, runs: Sequence[tuple[StyledRun, ...]] | None) -> None:
        """Take what `highlight.exact` returned for the fence of this number."""
        for block in (*self._reading.final, *self._reading.tail):
            for part in block.parts():
                if isinstance(part, Code) and part.number == number:
                    part.settle(runs or ())
                    block.forget()
                    self._stale = True

    def recolour(self) -> None:
        """Highlight code whose lexer was not loaded before."""
        for block in (*self._reading.final, *self._reading.tail):
            for part in block.parts():
                if isinstance(part, Code) and part.recolour():
                    block.forget()
                    self._stale = True

    def _read(self) -> None:
        if not self._fresh:
            self._reading.read(self.source, finished=self._finished)
            self._fresh = True
        thoughts = self._reading.thoughts if isinstance(self._reading, AnswerReading) else None
        if thoughts:
            thoughts.unfolded = self._thoughts_open

    def _codes(self) -> Iterator[Code]:
        for block in (*self._reading.final, *self._reading.tail):
            for part in block.parts():
                if isinstance(part, Code):
                    yield part

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
