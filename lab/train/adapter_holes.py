"""Draw gaps in source files: blocks, rests of lines, lines, syntax nodes, spans, and ends of unfinished files.

Half are blocks of several lines, which teach where to stop. Code is drawn more often than prose and imports.
"""

import random
import re
from dataclasses import dataclass

from tree_sitter import Node

from localdflash.text import syntax

SHARES = {"block": 0.5, "rest": 0.2, "line": 0.1, "node": 0.1, "span": 0.05, "open": 0.05}
LONGEST = 480  # characters of a node or a span
OPEN_LINES = 6
BLOCK_LINES = range(2, 13)
LONGEST_BLOCK = 900  # characters
PLAIN_LINES = 0.35  # of the blocks: lines inside a node, whatever its syntax
FROM_INSIDE = 0.4  # of the other blocks: from a later line of the node to its end
CLIMBS = 5  # from a leaf of the tree to the node that is missing, at most
_LINE = re.compile(r"[^\n]*\S[^\n]*")
_DULL = re.compile(r"\s*(import\b|from\b|#include|[)\]}>;,]+\s*$)")
_PROSE = re.compile("comment|string")
_OF_DULL = 0.25  # of the dull lines that are drawn, the share that is taken


@dataclass(frozen=True)
class TrainingHole:
    """Gap: the cursor is at `start`, the missing text ends at `end`, in characters."""

    kind: str
    start: int
    end: int

    @property
    def is_open(self) -> bool:
        """Return whether no text follows the gap."""
        return self.kind == "open"


class Holes:
    """Gaps of one text, which has a line of code."""

    def __init__(self, language: str, text: str) -> None:
        self._text = text
        self._lines = list(_LINE.finditer(text))
        self._tree = syntax.parse(language, text)
        self._bytes: bytes | None = None if text.isascii() else text.encode()

    def draw(self, rng: random.Random) -> TrainingHole:
        """Return a random gap."""
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        line = self._line(rng)
        code = line.start() + len(line[0]) - len(line[0].lstrip())
        end = line.start() + len(line[0].rstrip())
        if kind == "block":
            return self._block(code, rng) or TrainingHole("line", code, end)
        if kind == "node":
            return self._node(rng.randrange(code, end), rng)
        if kind == "line":  # an editor has put the indentation there, or nothing has
            return TrainingHole(kind, code if rng.random() < 0.6 else line.start(), end)
        start = rng.randrange(code, end)
        if kind == "span":
            return TrainingHole(kind, start, min(start + rng.randint(1, LONGEST // 4), len(self._text)))
        if kind == "open":
            return TrainingHole(kind, start, self._after_lines(start, rng.randint(1, OPEN_LINES)))
        return TrainingHole(kind, start, end)

    def _line(self, rng: random.Random) -> re.Match[str]:
        while True:
            line = rng.choice(self._lines)
            if rng.random() < _OF_DULL or not (_DULL.match(line[0]) or self._is_prose(line)):
                return line

    def _is_prose(self, line: re.Match[str]) -> bool:
        """Return whether a line begins inside a comment or a string."""
        node = self._node_at(line.start() + len(line[0]) - len(line[0].lstrip()))
        return node is not None and bool(_PROSE.search(node.type))

    def _node_at(self, at: int) -> Node | None:
        """Return the smallest named node around a character."""
        place = at if self._bytes is None else len(self._text[:at].encode())
        return self._tree.root_node.named_descendant_for_byte_range(place, place + 1) if self._tree else None

    def _after_lines(self, start: int, count: int) -> int:
        end = start
        for _ in range(count):
            end = self._text.find("\n", end + 1)
            if end < 0:
                return len(self._text)
        return end

    def _node(self, at: int, rng: random.Random) -> TrainingHole:
        """Return a gap that is a node around a character, or its end from a place in its first line on."""
        node = self._node_at(at)
        for _ in range(rng.randint(0, CLIMBS)):
            if node is None or node.parent is None or node.parent.end_byte - node.parent.start_byte > LONGEST:
                break
            node = node.parent
        if node is None or not 0 < node.end_byte - node.start_byte <= LONGEST:
            return TrainingHole("rest", at, self._after_lines(at, 1))
        start, end = self._characters(node.start_byte), self._characters(node.end_byte)
        end = start + len(self._text[start:end].rstrip())
        if rng.random() < 0.4:
            start += rng.randrange(max(len(self._text[start:end].partition("\n")[0]), 1))
        return TrainingHole("node", start, max(end, start + 1))

    def _block(self, at: int, rng: random.Random) -> TrainingHole | None:
        """Return a gap of several lines inside one of the nodes around a character; None where there is none."""
        plain = rng.random() < PLAIN_LINES
        spans = list[tuple[int, int]]()
        node = self._node_at(at)
        while node is not None and node.parent is not None:
            start, end = self._characters(node.start_byte), self._characters(node.end_byte)
            end = start + len(self._text[start:end].rstrip())
            lines = self._text.count("\n", start, end) + 1
            if lines > 40:
                break
            if lines >= BLOCK_LINES.start and (plain or lines in BLOCK_LINES):
                spans.append((start, end))
            node = node.parent
        if not spans:
            return None
        start, end = rng.choice(spans)
        starts = [start, *(line.start() for line in self._lines if start < line.start() < end)]
        first, count = 0, len(starts)
        if plain or rng.random() < FROM_INSIDE:
            first = rng.randrange(max(len(starts) - 1, 1))
        if plain:
            count = min(rng.choice(BLOCK_LINES), len(starts) - first)
        elif self._text[end - 1] in ")]}" and rng.random() < 0.5:  # an editor has closed the bracket already
            end = start + len(self._text[start : end - 1].rstrip())
        if plain and first + count < len(starts):
            end = starts[first + count]
            end = starts[first] + len(self._text[starts[first] : end].rstrip())
        start = starts[first]
        if rng.random() < 0.6:  # an editor has put the indentation there, or nothing has
            start += len(self._text[start:end]) - len(self._text[start:end].lstrip())
        fits = start < end and end - start <= LONGEST_BLOCK and "\n" in self._text[start:end]
        return TrainingHole("block", start, end) if fits else None

    def _characters(self, place: int) -> int:
        return place if self._bytes is None else len(self._bytes[:place].decode("utf-8", "replace"))
