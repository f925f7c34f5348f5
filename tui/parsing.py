"""Turn Markdown into blocks.

CommonMark with tables and strikethrough. HTML and link definitions are shown as text. What a line begins is settled by
that line alone, except for tables, which need the next one: so reading a growing text can resume at the block that it
ended with. Lists count as one block for each item.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it.parser_block import ParserBlock
from markdown_it.ruler import Ruler
from markdown_it.rules_block import StateBlock, blockquote, code, fence, heading, hr, lheading, list_block, paragraph
from markdown_it.rules_block import table as table_rule
from markdown_it.token import Token

from localdflash.tui.block_layout import Block, Item, Paragraph, Quote, Rule
from localdflash.tui.fence import Code, OpenFence
from localdflash.tui.inline import Markdown
from localdflash.tui.tables import Table

MAX_NESTING = 20  # levels of quotes and lists; an item counts twice
MAX_TABLE_COLUMNS = 64
BULLET = "•"

_Rule = Callable[[StateBlock, int, int, bool], bool]
_ALL = ["paragraph", "blockquote", "list"]


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """Block with its line range: first line, and line after its last one, counted from 0."""

    block: Block
    start: int
    end: int


def parse(text: str, number: int, known: Mapping[int, Code]) -> list[PlacedBlock]:
    """Return the blocks at the outermost level; fences are numbered from the given number on.

    `known` are fences read before, by number: those that have only grown keep their highlighting. An outermost fence
    without an end comes without its code: it is the last block, and the caller, who has the text, feeds it.
    """
    tokens: list[Token] = []
    markdown = _markdown()
    markdown.block.parse(text.replace("\r", ""), markdown, {}, tokens)
    return _Builder(tokens, text.split("\n"), number, known).outermost()


@cache
def _markdown() -> Markdown:
    """Return a parser whose rules that need one line come before the one that needs two."""
    markdown = Markdown()
    markdown.block = ParserBlock()
    ruler = markdown.block.ruler = Ruler[_Rule]()
    ruler.push("code", code)
    ruler.push("fence", fence, {"alt": _ALL})
    ruler.push("blockquote", _shallow(blockquote), {"alt": _ALL})
    ruler.push("hr", hr, {"alt": _ALL})
    ruler.push("list", _shallow(list_block), {"alt": ["paragraph", "blockquote"]})
    ruler.push("heading", heading, {"alt": ["paragraph", "blockquote"]})
    ruler.push("table", _narrow(table_rule), {"alt": ["paragraph"]})
    ruler.push("lheading", lheading)
    ruler.push("paragraph", paragraph)
    return markdown


def _shallow(rule: _Rule) -> _Rule:
    """Treat deeper nesting as text: nobody means it, and each level reads all of its lines once more."""

    def limited(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        return state.level < MAX_NESTING and rule(state, start, end, silent)

    return limited


def _narrow(rule: _Rule) -> _Rule:
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
        self._number = number
        self._known = known
        self._at = 0

    def outermost(self) -> list[PlacedBlock]:
        pieces: list[PlacedBlock] = []
        while self._at < len(self._tokens):
            if self._tokens[self._at].type in {"bullet_list_open", "ordered_list_open"}:
                pieces += self._items()
            elif self._tokens[self._at].type == "fence":
                pieces.append(self._outer_fence(self._next()))
            else:
                pieces.append(self._piece())
        return pieces

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _inside(self, closing: str) -> list[PlacedBlock]:
        """Return the blocks up to a closing token, which is consumed; gaps are where the text has blank lines."""
        pieces: list[PlacedBlock] = []
        while self._tokens[self._at].type != closing:
            found = self._items() if self._tokens[self._at].type.endswith("_list_open") else [self._piece()]
            for piece in found:
                piece.block.gap = bool(pieces) and piece.start > pieces[-1].end
                pieces.append(piece)
        self._at += 1
        return pieces

    def _items(self) -> list[PlacedBlock]:
        """Return the items of a list."""
        closing = self._next().type.replace("_open", "_close")
        pieces = []
        while self._tokens[self._at].type != closing:
            token = self._next()
            children = self._inside("list_item_close")
            start = _lines_of(token)[0]
            marker = f"{token.info}{token.markup}" if token.info else BULLET
            end = children[-1].end if children else start + 1
            pieces.append(PlacedBlock(Item(marker, [child.block for child in children]), start, end))
        self._at += 1
        return pieces

    def _piece(self) -> PlacedBlock:
        token = self._next()
        start, end = _lines_of(token)
        if token.type == "blockquote_open":
            children = self._inside("blockquote_close")
            end = max(children[-1].end, start + 1) if children else start + 1
            return PlacedBlock(Quote([child.block for child in children]), start, end)
        if token.type == "table_open":
            return PlacedBlock(self._table(), start, end)
        if token.type in {"fence", "code_block"}:
            return PlacedBlock(self._code(token), start, end)
        if token.type == "hr":
            return PlacedBlock(Rule(), start, end)
        content = self._next().content
        self._at += 1
        return PlacedBlock(Paragraph(content, int(token.tag[1:]) if token.type == "heading_open" else 0), start, end)

    def _table(self) -> Block:
        rows: list[list[str]] = []
        aligned: list[str] = []
        while (token := self._next()).type != "table_close":
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "th_open":
                aligned.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
            elif token.type == "inline":
                rows[-1].append(token.content)
        return Table(rows[0], aligned, rows[1:])

    def _outer_fence(self, token: Token) -> PlacedBlock:
        start, end = _lines_of(token)
        opener = OpenFence(self._raw[start])
        block = Code(opener.info, self._number)
        block.closed = end - start > 1 and opener.ends_with(self._raw[end - 1])
        for line in self._raw[start + 1 : end - 1] if block.closed else ():
            block.add(opener.code(line + "\n"))
        self._number += 1
        return PlacedBlock(block, start, end)

    def _code(self, token: Token) -> Code:
        """Return the code of a fence inside another block, or of an indented block."""
        number = self._number if token.type == "fence" else 0
        self._number += bool(number)
        info = token.info.strip()
        known = self._known.get(number) if number else None
        block = known if known and known.info == info else Code(info, number)
        lines = self._raw_lines(token, number)
        block.become([*lines, ""] if lines and lines[-1].endswith("\n") else lines)
        start, end = _lines_of(token)
        block.closed = not number or end - start == len(lines) + 2
        return block

    def _raw_lines(self, token: Token, number: int) -> list[str]:
        """Return the code as it came: each line of the token is the end of a raw line, without carriage returns."""
        first = _lines_of(token)[0] + bool(number)
        lines = token.content.split("\n")
        ends = ["\n"] * (len(lines) - 1) + [""]
        return [
            _ending_as(line, self._raw[first + place]) + ends[place]
            for place, line in enumerate(lines)
            if line or ends[place]
        ]


def _ending_as(line: str, raw: str) -> str:
    """Return the end of the raw line that equals this line apart from carriage returns."""
    if "\r" not in raw:
        return line
    at, missing = len(raw), len(line)
    while missing and at:
        at -= 1
        missing -= raw[at] != "\r"
    kept = raw[at:] if line else raw[len(raw.rstrip("\r")) :]
    return kept if kept.replace("\r", "") == line else line


def _lines_of(token: Token) -> tuple[int, int]:
    assert token.map is not None
    return token.map[0], token.map[1]
