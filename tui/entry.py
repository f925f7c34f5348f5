"""Message as rows of the screen: author, text, how an answer ended, and notes of the program.

Offsets count characters of the text that copying all rows yields, so they are valid at every width.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localdflash.chat.messages import Message, StepRecord
from localdflash.tui.captions import attachment_line, footer, header, note_run
from localdflash.tui.styled_lines import Line, StyledRun, wrap
from localdflash.tui.tints import TintedText

if TYPE_CHECKING:  # slow to import; the app imports it in a thread
    from localdflash.tui.markdown import MarkdownDocument

_BLANK = Line(ending="")


@dataclass(frozen=True, slots=True)
class ChatView:
    """View options of the transcript; `model` is the default model name of answers."""

    width: int  # cells
    tinted: bool = False  # answers as raw text, tinted by drafter
    unfolds_thoughts: bool = False  # whether the model's thinking is unfolded
    model: str = ""


class ChatEntry:
    """Message with its number and layout; without a message, an entry for notes only."""

    def __init__(self, message: Message | None, number: int = 0) -> None:
        self.message, self.number = message, number
        self.text = message.text if message else ""
        self.steps: list[StepRecord] = []  # steps of the streaming answer
        self.notes: list[tuple[str, str]] = []  # text, kind
        self.is_growing = False
        self.thoughts_inverted = False  # thoughts are folded if `view.unfolds_thoughts` unfolds them, and vice versa
        self.height = 0  # rows; an estimate until it was laid out
        self._view: ChatView | None = None  # None: not laid out
        self._document: MarkdownDocument | None = None
        self._tinted: TintedText | None = None
        self._head: Sequence[Line] = ()
        self._body: Sequence[Line] = ()
        self._tail: Sequence[Line] = ()
        self._offsets: list[int] = []  # text offset at which each row begins

    @property
    def is_answer(self) -> bool:
        """Return whether the message is an answer."""
        return self.message is not None and self.message.role == "assistant"

    def grow(self, text: str, step: StepRecord | None = None) -> None:
        """Append text to the streaming answer."""
        if not self.is_growing:
            self.is_growing, self._document = True, None
        self.text += text
        if self._document:
            self._document.append(text)
        if self._tinted:
            self._tinted.append(text)
        if step:
            self.steps.append(step)
            if self._tinted:
                self._tinted.add(step)

    def finish(self, message: Message, rest: str) -> None:
        """Set the complete answer; `rest` is the part not shown yet."""
        if message.text == self.text + rest:
            self.grow(rest)
        else:
            self._document = self._tinted = None
        self.text = message.text
        self.message, self.is_growing = message, False
        if message.steps:
            if list(message.steps) != self.steps:
                self._tinted = None
            self.steps = []
        if self._document:
            self._document.finish()

    def code_blocks(self) -> list[str]:
        """Return the code of the fences, unmodified."""
        from localdflash.tui.markdown import MarkdownDocument

        document = MarkdownDocument()
        document.append(self.text)
        document.finish()
        return [fence.code for fence in document.fences()]

    def estimate(self, view: ChatView) -> None:
        """Estimate the height without a layout, and mark the entry as not laid out."""
        self._view = None
        attachments = len(self.message.attachments) if self.message else 0
        rows = sum(1 + len(line) // view.width for line in self.text.split("\n"))
        self.height = 2 + attachments + rows + (1 if self.is_answer else 0)

    def is_laid_out(self, view: ChatView) -> bool:
        """Return whether the entry is laid out for this view."""
        return self._view == view

    def drop_layout(self) -> None:
        """Free the rows and keep the height."""
        self._view = self._document = self._tinted = None
        self._head = self._body = self._tail = ()
        self._offsets = []

    def lay_out(self, view: ChatView) -> range:
        """Lay out the rows; return the range of rows that may have changed."""
        old_head, self._head = self._head, self._make_head(view)
        self._body, changed = self._make_body(view)
        self._tail = self._make_tail(view)
        first = changed + len(old_head) if self._view == view and len(self._head) == len(old_head) else 0
        self._view, self.height = view, len(self._head) + len(self._body) + len(self._tail)
        self._update_offsets(first)
        return range(first if self._head == old_head else 0, self.height)

    def line(self, row: int) -> Line:
        """Return one row; the entry must be laid out."""
        for part in (self._head, self._body, self._tail):
            if row < len(part):
                return part[row]
            row -= len(part)
        return _BLANK

    def _make_head(self, view: ChatView) -> list[Line]:
        if self.message is None:
            return []
        lines = [header(self.message, self.number, view.model)]
        for attachment in self.message.attachments:
            lines += _as_decoration([attachment_line(attachment)], view.width)
        if view.tinted and self.is_answer:
            lines += [*_as_decoration(self._tinted_text().legend(), view.width), _BLANK]
        return lines

    def _make_body(self, view: ChatView) -> tuple[Sequence[Line], int]:
        """Lay out the text; return its rows and the first one that changed."""
        if view.tinted and self.is_answer:
            return self._tinted_text().lines(view.width), self._tinted_text().first_changed
        if not self.text:
            return (), 0
        if self._document is None:
            from localdflash.tui.markdown import MarkdownDocument

            self._document = MarkdownDocument(plain=not self.is_answer)
            self._document.append(self.text)
            if not self.is_growing:
                self._document.finish()
        self._document.show_thoughts(view.unfolds_thoughts != self.thoughts_inverted)
        try:
            return self._document.lines(view.width), self._document.first_changed
        except Exception:  # an error in the parser library: show the raw text
            return TintedText(self.text).lines(view.width), 0

    def _tinted_text(self) -> TintedText:
        if self._tinted is None:
            known = self.message.steps if self.message else ()
            self._tinted = TintedText(self.text, (*known, *self.steps))
        return self._tinted

    def _make_tail(self, view: ChatView) -> list[Line]:
        lines: list[Line] = []
        if self.message and not self.is_growing and (ended := footer(self.message)):
            lines += _as_decoration([ended], view.width)
        for text, kind in self.notes:
            lines += wrap([note_run(text, kind)], view.width)
        return [*lines, _BLANK]

    def highlight_again(self) -> None:
        """Highlight again, after lexers were loaded."""
        if self._document:
            self._document.highlight_again()

    def offset(self, row: int) -> int:
        """Return the text offset at which this row begins."""
        return self._offsets[row]

    def row(self, offset: int) -> int:
        """Return the row that contains this text offset."""
        return max(0, min(bisect_right(self._offsets, offset, hi=self.height) - 1, self.height - 1))

    def text_between(self, start: int, end: int | None) -> str:
        """Return the copied text between two offsets; None as `end` is the end of the entry."""
        return "".join(map(copied_text, (*self._head, *self._body, *self._tail)))[start:end]

    def _update_offsets(self, first: int) -> None:
        """Recompute the offsets from this row on."""
        total = self._offsets[first] if first < len(self._offsets) else 0
        del self._offsets[first:]
        for row in range(first, self.height):
            self._offsets.append(total)
            total += len(copied_text(self.line(row)))
        self._offsets.append(total)


def _as_decoration(runs: Sequence[StyledRun], width: int) -> list[Line]:
    """Mark rows as decoration, which copying leaves out."""
    return [Line(line.runs, len(line.runs), "") for line in wrap(runs, width)]


def copied_text(line: Line) -> str:
    """Return the text that copying this row gives."""
    return "".join(run.text for run in line.runs[line.decoration :]) + line.ending
