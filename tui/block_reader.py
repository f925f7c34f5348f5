"""Reads a growing text as blocks. Blocks that nothing can change any more are `final`; only the rest is read again.

Reading resumes at a line that begins a block, once that line and the next one are complete: what a line begins depends
on no more than that (see `parsing`). A fence at the outermost level is not read as Markdown: it is handed its lines
until one ends it.
"""

from collections.abc import Sequence

from localdflash.text.thoughts import CLOSING, OPENING
from localdflash.tui.block_layout import Block, Item, Paragraph, Thoughts, Verbatim
from localdflash.tui.fence import Code, OpenFence
from localdflash.tui.parsing import PlacedBlock, parse


class TypedReading:
    """Reader of plain text, as typed by the user."""

    def __init__(self) -> None:
        self.final: Sequence[Block] = ()
        self._block = Verbatim()
        self.tail: Sequence[Block] = (self._block,)
        self._read = 0

    def read(self, source: str, *, finished: bool) -> None:
        """Read new text."""
        self._block.append(source[self._read :])
        self._read = len(source)


class AnswerReading:
    """Reader of Markdown, possibly after thinking. `source` only grows between calls of `read`."""

    def __init__(self) -> None:
        self.final: list[Block] = []
        self.tail: list[Block] = []
        self.thoughts: Thoughts | None = None
        self._begun = False  # the answer itself, after what was thought
        self._source = ""
        self._finished = False
        self._at = 0  # all before is in final
        self._blank = False  # the line before is
        self._number = 1  # of the next fence
        self._open: tuple[OpenFence, Code] | None = None

    def read(self, source: str, *, finished: bool) -> None:
        """Read new text; provisional blocks at an open end are settled when the answer is finished."""
        self._source, self._finished = source, finished
        if not self._begun:
            self._begin()
        if self._begun or (finished and self.thoughts is None):
            while self._feed() if self._open else self._parse():
                pass

    def _begin(self) -> None:
        """Read the thoughts, if the text begins with them."""
        if self.thoughts is None:
            text = self._source.lstrip()
            if not text.startswith(OPENING):
                self._begun = not OPENING.startswith(text)
                return
            self.thoughts = Thoughts()
            self._at = len(self._source) - len(text) + len(OPENING)
            self.tail = [self.thoughts]
        end = self._source.find(CLOSING, self._at)
        self.thoughts.ended = self._finished or end >= 0
        if end < 0:
            text = self._source[self._at :]
            self.thoughts.become(text if self._finished else text[: len(text) - _begun_at_end(text, CLOSING)])
            return
        self.thoughts.become(self._source[self._at : end])
        self._begun, self._at = True, end + len(CLOSING)
        self.final, self.tail = [self.thoughts], []

    def _parse(self) -> bool:
        """Read what is not final; return whether that opened a fence, which is read in another way."""
        text = self._source[self._at :]
        lines = text.split("\n")
        pieces = parse(text, self._number, _codes(self.tail))
        before = self.final[-1] if self.final else None
        for piece in pieces:
            blank = _is_blank(lines[piece.start - 1]) if piece.start else self._blank
            piece.block.gap = blank or not _tight(before, piece.block)
            before = piece.block
        last = pieces[-1] if pieces else None
        if last and last.start < len(lines) - 1 and isinstance(last.block, Code) and _endless(last.block):
            self._keep(pieces[:-1], lines, last.start + 1)
            self._number += 1
            self._open = (OpenFence(lines[last.start]), last.block)
            return True
        cut = _first_that_may_change(pieces, len(lines) - 1)
        self._keep([piece for piece in pieces if piece.start < cut], lines, cut)
        self.tail = [piece.block for piece in pieces if piece.start >= cut]
        return False

    def _keep(self, pieces: Sequence[PlacedBlock], lines: Sequence[str], end: int) -> None:
        """Make these blocks, and the text up to this line, final."""
        self.final += (piece.block for piece in pieces)
        self._number += sum(len(_codes([piece.block])) for piece in pieces)
        if end:
            self._blank = _is_blank(lines[end - 1])
            self._at += sum(map(len, lines[:end])) + end

    def _feed(self) -> bool:
        """Hand the open fence its lines; return whether it ended."""
        assert self._open
        fence, code = self._open
        while (end := self._source.find("\n", self._at) + 1) > 0:
            line, self._at = self._source[self._at : end], end
            if fence.ends_with(line):
                self._end(code)
                return True
            code.add(fence.code(line))
        line = self._source[self._at :]
        code.closed = fence.ends_with(line)
        hidden = code.closed or (not self._finished and fence.may_end_with(line))
        code.open_line = "" if hidden else fence.code(line)
        self.tail = [code]
        return False

    def _end(self, code: Code) -> None:
        code.closed, code.open_line = True, ""
        self.final.append(code)
        self.tail, self._open, self._blank = [], None, False


def _first_that_may_change(pieces: Sequence[PlacedBlock], complete: int) -> int:
    """Return the line before which no further text can change a block; `complete` lines have their line feed."""
    cut = max((piece.start for piece in pieces if piece.start + 2 <= complete), default=0)
    ends = [
        piece.end for piece in pieces if isinstance(piece.block, Code) and piece.block.closed and piece.block.number
    ]
    return max([cut, *(end for end in ends if end <= complete)])


def _codes(blocks: Sequence[Block]) -> dict[int, Code]:
    """Return the fences in these blocks, by number."""
    return {part.number: part for block in blocks for part in block.parts() if isinstance(part, Code) and part.number}


def _endless(code: Code) -> bool:
    return bool(code.number) and not code.closed


def _tight(before: Block | None, block: Block) -> bool:
    """Return whether the block may stand directly under the one before: items do, if they were written so."""
    return isinstance(block, Item) and (
        isinstance(before, Item) or (isinstance(before, Paragraph) and not before.level)
    )


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r")


def _begun_at_end(text: str, tag: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
