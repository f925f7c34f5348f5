"""Where the text of a completion ends, decided while it is decoded: no token is made for nothing, no text taken back.

`push` gives the text that is certain by now. Held back are blanks at the end, what could turn out to repeat the text
around the cursor or itself, and what could be the rest of the cursor's line. It works character by character, so it
does not matter in which pieces the text comes.
"""

import re
from copy import deepcopy
from typing import Literal

from localdflash.fill.brackets import CLOSERS
from localdflash.fill.extent import Extent, indent_of, opens_block
from localdflash.fill.repeats import Repeats

Reason = Literal["line", "statement", "block", "suffix", "repeat"]
LINES = 12  # of a block or a statement
EMPTY_LINES = 2
LONG_LINE = 32  # characters before a line is looked at for repeating itself
_AGAIN = re.compile(r"(.*?\w.*?)\1{3,}\Z", re.DOTALL)  # four times the same
_GOES_ON = re.compile(r"(\\|[,+\-*/%=&|^<.?:])$")
_DONE = re.compile(r"(\+\+|--)$")


class Stopping:
    """The end of one text, whose first `skipped` characters stand before the cursor already.

    `reason` is why it ended, or empty while it goes on.
    """

    def __init__(self, extent: Extent, skipped: int = 0) -> None:
        self.reason: Reason | Literal[""] = ""
        self._extent, self._skipped = extent, skipped
        self._kind = extent.kind
        self._brackets = deepcopy(extent.brackets)
        self._before = len(self._brackets.stack)  # open brackets that stand before the cursor
        self._repeats = Repeats(extent.above, extent.below)
        self._rest = extent.rest.strip()
        self._text, self._sent = "", 0
        self._line, self._head = 0, extent.line  # where the line begins in the text, and what of it stands before
        self._count = self._empty = 0  # lines so far, and empty ones in a row
        self._indent: int | None = None if extent.opens_block or not extent.line.strip() else extent.indent
        self._grouped = not extent.opens_block  # an empty line may end it
        self._closing = False  # on the line that closes what was open at the cursor

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return bool(self.reason)

    def push(self, text: str) -> str:
        """The text that is certain by now."""
        text, self._skipped = text[self._skipped :], max(self._skipped - len(text), 0)
        for char in text:
            if self.reason:
                break
            self._take(char)
        return self._certain(len(self._text) if self.reason else self._held_from())

    def finish(self) -> str:
        """The text held back, now that no more comes; less what it turned out to repeat."""
        if not self.reason:
            self._end_of_line()
        return self._certain(len(self._text))

    def _certain(self, end: int) -> str:
        certain = self._text[self._sent : end].rstrip() if end == len(self._text) else self._text[self._sent : end]
        if not (self._text[: self._sent] + certain).strip():
            certain = ""
        self._sent += len(certain)
        return certain

    def _held_from(self) -> int:
        """Where the text begins that is not certain."""
        text, line = self._text, self._text[self._line :]
        held = len(text)
        start = self._repeats.begins(self._head + line, self._line) if not self._rest or self._line else None
        if start is not None:
            held = min(held, len(text[:start].rstrip()))
        if self._rest and not self._line:
            tails = range(max(len(text) - len(self._rest), 0), len(text))
            starts = [at for at in tails if self._rest.startswith(text[at:].rstrip())]
            held = min(held, len(text[: min(starts, default=held)].rstrip()))
        return held

    def _take(self, char: str) -> None:
        if char == "\n":
            self._line_feed()
        elif not char.isspace():
            self._code(char)
        if self.reason:
            return
        self._brackets.feed(char)
        self._before = min(self._before, len(self._brackets.stack))
        self._text += char
        line = self._text[self._line :]
        if len(line) >= LONG_LINE and _AGAIN.search(line[-160:]):
            self._stop("repeat")

    def _code(self, char: str) -> None:
        """A character that is no blank is about to come."""
        if not (self._head + self._text[self._line :]).strip():
            self._first_of_line(char)
        if self.reason:
            return
        quote = self._brackets.inside
        if quote and quote == self._extent.brackets.inside:
            if self._rest.startswith(quote) and char == quote[0] and not self._brackets.escaped:
                self._stop("suffix")
        elif char in CLOSERS and self._brackets.in_code and self._closes_again(char):
            self._stop("suffix")

    def _closes_again(self, closer: str) -> bool:
        """Whether a bracket closes what the text after the cursor closes."""
        stack = self._brackets.stack
        if len(stack) > self._before:
            return False
        if not stack:
            return True
        return len(stack) - 1 not in self._extent.owed or not stack[-1].is_closed_by(closer)

    def _first_of_line(self, char: str) -> None:
        """The first character of a line that is no blank: does its indentation end the block?"""
        if self._kind != "block" or self._brackets.inside or len(self._brackets.stack) > self._before:
            return
        indent = indent_of(self._head + self._text[self._line :])
        if self._indent is None:
            self._indent = indent
            if self._extent.opens_block and indent <= self._least():
                self._stop("block")
        elif indent < self._indent:
            self._closing = char in CLOSERS and not self._closes_again(char)
            if not self._closing:
                self._stop("block")
        elif self._empty and self._grouped and indent <= self._indent:
            self._stop("block")

    def _least(self) -> int:
        """The indentation of the line that begins the block."""
        line = self._extent.line
        return indent_of(line if line.strip() or not self._extent.above else self._extent.above[-1])

    def _line_feed(self) -> None:
        """A line is complete."""
        line = self._head + self._text[self._line :]
        if self._end_of_line():
            return
        self._empty = 0 if line.strip() else self._empty + 1
        self._count += bool(line.strip())
        if self._text.strip() or self._kind != "block":
            self._stop_after(line)
        if self._empty > EMPTY_LINES or (self._text.strip() and self._empty >= EMPTY_LINES):
            self._stop("block")
        if self._line or not self._rest:
            self._repeats.add(line, self._line)
        self._line, self._head = len(self._text) + 1, ""

    def _stop_after(self, line: str) -> None:
        """Stop after a complete line, where that is the end of what was to be completed."""
        if self._kind == "line":
            self._stop("line")
        elif self._count >= LINES or self._closing:
            self._stop(self._kind)
        elif self._kind == "statement" and not self._goes_on(line):
            if opens_block(self._extent.language, line) and not self._rest:
                self._kind, self._grouped = "block", False
                self._indent = self._extent.indent + 1
            else:
                self._stop("statement")

    def _goes_on(self, line: str) -> bool:
        """Whether a statement goes on after a line."""
        brackets, owed = self._brackets, self._extent.owed
        if brackets.inside and brackets.inside != "\n":
            return len(brackets.inside) > 1 or brackets.inside == "`"
        if len(brackets.stack) > self._before:
            return True
        if any(i in owed and not one.opens_block for i, one in enumerate(brackets.stack)):
            return True
        code = line.rstrip()
        if self._extent.language == "python" or opens_block(self._extent.language, line):
            return code.endswith("\\")
        return bool(_GOES_ON.search(code)) and not _DONE.search(code)

    def _end_of_line(self) -> bool:
        """Drop what of a complete line stands elsewhere already; whether that was so."""
        text = self._text[self._line :]
        line = self._head + text
        if self._rest and not self._line:
            if text.rstrip().endswith(self._rest) and (len(self._rest) > 1 or not self._rest.isalnum()):
                self._stop("suffix", len(text.rstrip()) - len(self._rest))
        elif self._repeats.is_suffix(line) and len(self._brackets.stack) <= self._before:
            self._stop("suffix", self._line)
        elif text.strip() and (start := self._repeats.repeated(line, self._line)) is not None:
            self._stop("repeat", start)
        return self.ended

    def _stop(self, reason: Reason, end: int | None = None) -> None:
        self.reason = reason
        if end is not None:
            self._text = self._text[:end]
