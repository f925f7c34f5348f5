"""Read a growing Markdown text as blocks; only its end, which may still change, is read again.

CommonMark with tables and strikethrough; HTML and link definitions are shown as text. The meaning of a line depends on
that line and, for tables, on the next line, so reading can resume at any line that begins a block. An outermost fence
is not parsed as Markdown but receives its raw lines. Each item of a list is a block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it.parser_block import ParserBlock
from markdown_it.ruler import Ruler
from markdown_it.rules_block import StateBlock, blockquote, code, fence, heading, hr, lheading, list_block, paragraph
from markdown_it.rules_block import table as table_rule
from markdown_it.token import Token

from localdflash.text.thoughts import CLOSING, OPENING, overlap_at_end
from localdflash.tui.block_layout import Block, HorizontalRule, Item, Paragraph, Quote, Thoughts, Verbatim
from localdflash.tui.fence import Code, OpenFence
from localdflash.tui.inline import Markdown
from localdflash.tui.tables import Table

MAX_NESTING = 20  # levels of quotes and lists; a list item counts as two
MAX_TABLE_COLUMNS = 64
BULLET = "•"

_Rule = Callable[[StateBlock, int, int, bool], bool]
_ALL = ["paragraph", "blockquote", "list"]  # blocks that most other blocks may interrupt


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """Block with its first line, and the line after its last one."""

    block: Block
    start: int
    end: int


def parse(text: str, number: int, known: Mapping[int, Code]) -> list[PlacedBlock]:
    """Return the outermost blocks, with fences numbered from `number` on; `known` fences keep their highlighting.

    An outermost fence that is still open is returned as the last block, without its code; the caller adds the lines.
    """
    tokens: list[Token] = []
    markdown = _markdown()
    markdown.block.parse(text.replace("\r", ""), markdown, {}, tokens)
    return _Builder(tokens, text.split("\n"), number, known).build()


@cache
def _markdown() -> Markdown:
    """Return a parser in which the rules that look at one line precede `table`, which looks at two."""
    markdown = Markdown()
    markdown.block = ParserBlock()
    ruler = markdown.block.ruler = Ruler[_Rule]()
    ruler.push("code", code)
    ruler.push("fence", fence, {"alt": _ALL})
    ruler.push("blockquote", _limit_nesting(blockquote), {"alt": _ALL})
    ruler.push("hr", hr, {"alt": _ALL})
    ruler.push("list", _limit_nesting(list_block), {"alt": ["paragraph", "blockquote"]})
    ruler.push("heading", heading, {"alt": ["paragraph", "blockquote"]})
    ruler.push("table", _limit_columns(table_rule), {"alt": ["paragraph"]})
    ruler.push("lheading", lheading)
    ruler.push("paragraph", paragraph)
    return markdown


def _limit_nesting(rule: _Rule) -> _Rule:
    """Treat deeper nesting as text, because each level of nesting parses its lines again."""

    def limited(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        return state.level < MAX_NESTING and rule(state, start, end, silent)

    return limited


def _limit_columns(rule: _Rule) -> _Rule:
    """Treat a table with too many columns as text."""

    def limited(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        columns = state.src.count("|", state.bMarks[start], state.eMarks[start])
        return 0 < columns <= MAX_TABLE_COLUMNS and rule(state, start, end, silent)

    return limited


class _Builder:
    """Builder of blocks from Markdown tokens, in one pass."""

    def __init__(self, tokens: Sequence[Token], lines: Sequence[str], number: int, known: Mapping[int, Code]) -> None:
        self._tokens = tokens
        self._raw = lines
        self._number = number  # number of the next fence
        self._known = known
        self._at = 0  # index of the next token

    def build(self) -> list[PlacedBlock]:
        pieces: list[PlacedBlock] = []
        while self._at < len(self._tokens):
            if self._tokens[self._at].type in {"bullet_list_open", "ordered_list_open"}:
                pieces += self._read_items()
            elif self._tokens[self._at].type == "fence":
                pieces.append(self._read_outer_fence(self._next_token()))
            else:
                pieces.append(self._read_block())
        return pieces

    def _next_token(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _read_until(self, closing: str) -> list[PlacedBlock]:
        """Return the blocks up to a closing token, which is consumed."""
        pieces: list[PlacedBlock] = []
        while self._tokens[self._at].type != closing:
            blocks = self._read_items() if self._tokens[self._at].type.endswith("_list_open") else [self._read_block()]
            for piece in blocks:
                piece.block.gap = bool(pieces) and piece.start > pieces[-1].end
                pieces.append(piece)
        self._at += 1
        return pieces

    def _read_items(self) -> list[PlacedBlock]:
        """Return the items of a list."""
        closing = self._next_token().type.replace("_open", "_close")
        pieces = []
        while self._tokens[self._at].type != closing:
            token = self._next_token()
            children = self._read_until("list_item_close")
            start = _line_range(token)[0]
            marker = f"{token.info}{token.markup}" if token.info else BULLET
            end = children[-1].end if children else start + 1
            pieces.append(PlacedBlock(Item(marker, [child.block for child in children]), start, end))
        self._at += 1
        return pieces

    def _read_block(self) -> PlacedBlock:
        token = self._next_token()
        start, end = _line_range(token)
        if token.type == "blockquote_open":
            children = self._read_until("blockquote_close")
            end = max(children[-1].end, start + 1) if children else start + 1
            return PlacedBlock(Quote([child.block for child in children]), start, end)
        if token.type == "table_open":
            return PlacedBlock(self._read_table(), start, end)
        if token.type in {"fence", "code_block"}:
            return PlacedBlock(self._read_code(token), start, end)
        if token.type == "hr":
            return PlacedBlock(HorizontalRule(), start, end)
        content = self._next_token().content
        self._at += 1
        return PlacedBlock(Paragraph(content, int(token.tag[1:]) if token.type == "heading_open" else 0), start, end)

    def _read_table(self) -> Block:
        rows: list[list[str]] = []
        alignments: list[str] = []
        while (token := self._next_token()).type != "table_close":
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "th_open":
                alignments.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
            elif token.type == "inline":
                rows[-1].append(token.content)
        return Table(rows[0], alignments, rows[1:])

    def _read_outer_fence(self, token: Token) -> PlacedBlock:
        start, end = _line_range(token)
        opener = OpenFence(self._raw[start])
        block = Code(opener.info, self._number)
        block.closed = end - start > 1 and opener.ends_with(self._raw[end - 1])
        for line in self._raw[start + 1 : end - 1] if block.closed else ():
            block.add(opener.code(line + "\n"))
        self._number += 1
        return PlacedBlock(block, start, end)

    def _read_code(self, token: Token) -> Code:
        """Return the code of a fence inside another block, or of an indented block."""
        number = self._number if token.type == "fence" else 0
        self._number += bool(number)
        info = token.info.strip()
        known = self._known.get(number) if number else None
        block = known if known and known.info == info else Code(info, number)
        *complete, last = token.content.split("\n")
        block.set_lines([*(f"{line}\n" for line in complete), last])
        start, end = _line_range(token)
        block.closed = not number or end - start == len(complete) + int(last != "") + 2
        return block


def _line_range(token: Token) -> tuple[int, int]:
    assert token.map is not None
    return token.map[0], token.map[1]


class PlainTextReader:
    """Reader of plain text, as typed by the user."""

    thoughts: Thoughts | None = None

    def __init__(self) -> None:
        self.final: Sequence[Block] = ()
        self._block = Verbatim()
        self.tail: Sequence[Block] = (self._block,)
        self._read = 0  # number of characters read

    def read(self, source: str, *, finished: bool) -> None:
        """Read the text added since the last call."""
        self._block.append(source[self._read :])
        self._read = len(source)


class MarkdownReader:
    """Reader of Markdown, possibly after thinking. `source` only grows between calls of `read`."""

    def __init__(self) -> None:
        self.final: list[Block] = []
        self.tail: list[Block] = []
        self.thoughts: Thoughts | None = None
        self._has_begun = False  # whether the answer has begun, after the thoughts
        self._source = ""
        self._finished = False
        self._at = 0  # offset of the text that is not in `final` yet
        self._after_blank = False  # whether the line before `_at` is blank
        self._number = 1  # number of the next fence
        self._open: tuple[OpenFence, Code] | None = None

    def read(self, source: str, *, finished: bool) -> None:
        """Read the text added since the last call. Blocks at the end may still change until it is `finished`."""
        self._source, self._finished = source, finished
        if not self._has_begun:
            self._read_thoughts()
        if self._has_begun or (finished and self.thoughts is None):
            while self._read_fence_lines() if self._open else self._parse():
                pass

    def _read_thoughts(self) -> None:
        """Read the thoughts, if the text begins with them."""
        if self.thoughts is None:
            text = self._source.lstrip()
            if not text.startswith(OPENING):
                self._has_begun = not OPENING.startswith(text)
                return
            self.thoughts = Thoughts()
            self._at = len(self._source) - len(text) + len(OPENING)
            self.tail = [self.thoughts]
        end = self._source.find(CLOSING, self._at)
        self.thoughts.has_ended = self._finished or end >= 0
        if end < 0:
            text = self._source[self._at :]
            self.thoughts.set_text(text if self._finished else text[: len(text) - overlap_at_end(text, CLOSING)])
            return
        self.thoughts.set_text(self._source[self._at : end])
        self._has_begun, self._at = True, end + len(CLOSING)
        self.final, self.tail = [self.thoughts], []

    def _parse(self) -> bool:
        """Parse the text that is not final; return whether it opens a fence, which `_read_fence_lines` reads."""
        text = self._source[self._at :]
        lines = text.split("\n")
        pieces = parse(text, self._number, _codes(self.tail))
        before = self.final[-1] if self.final else None
        for piece in pieces:
            blank = _is_blank(lines[piece.start - 1]) if piece.start else self._after_blank
            piece.block.gap = blank or not _needs_no_gap(before, piece.block)
            before = piece.block
        start, block = (pieces[-1].start, pieces[-1].block) if pieces else (0, None)
        if isinstance(block, Code) and block.number and not block.closed and start < len(lines) - 1:
            self._finalise(pieces[:-1], lines, start + 1)
            self._number += 1
            self._open = (OpenFence(lines[start]), block)
            return True
        cut = _first_unstable_line(pieces, len(lines) - 1)
        self._finalise([piece for piece in pieces if piece.start < cut], lines, cut)
        self.tail = [piece.block for piece in pieces if piece.start >= cut]
        return False

    def _finalise(self, pieces: Sequence[PlacedBlock], lines: Sequence[str], end: int) -> None:
        """Make these blocks, and the text up to this line, final."""
        self.final += (piece.block for piece in pieces)
        self._number += sum(len(_codes([piece.block])) for piece in pieces)
        if end:
            self._after_blank = _is_blank(lines[end - 1])
            self._at += sum(map(len, lines[:end])) + end

    def _read_fence_lines(self) -> bool:
        """Append new lines to the open fence; return whether it ended."""
        assert self._open
        opener, block = self._open
        while (end := self._source.find("\n", self._at) + 1) > 0:
            line, self._at = self._source[self._at : end], end
            if opener.ends_with(line):
                block.closed, block.open_line = True, ""
                self.final.append(block)
                self.tail, self._open, self._after_blank = [], None, False
                return True
            block.add(opener.code(line))
        line = self._source[self._at :]
        block.closed = opener.ends_with(line)
        is_end = block.closed or (not self._finished and opener.may_end_with(line))
        block.open_line = "" if is_end else opener.code(line)
        self.tail = [block]
        return False


def _first_unstable_line(pieces: Sequence[PlacedBlock], complete: int) -> int:
    """Return the first line of the blocks that further text may change; `complete` lines end with a line feed."""
    cut = max((piece.start for piece in pieces if piece.start + 2 <= complete), default=0)
    closed = (piece for piece in pieces if isinstance(piece.block, Code) and piece.block.closed and piece.block.number)
    return max([cut, *(piece.end for piece in closed if piece.end <= complete)])


def _codes(blocks: Sequence[Block]) -> dict[int, Code]:
    """Return the fences in these blocks, by number."""
    return {part.number: part for block in blocks for part in block.parts() if isinstance(part, Code) and part.number}


def _needs_no_gap(before: Block | None, block: Block) -> bool:
    """Return whether two blocks need no blank line between them: a list item after an item or a paragraph."""
    return isinstance(block, Item) and (
        isinstance(before, Item) or (isinstance(before, Paragraph) and not before.level)
    )


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r")
