"""Sample gaps in source files: blocks, ends of lines, lines, syntax nodes, spans, and ends of unfinished files.

Half of the gaps are blocks of several lines, which teach where to stop. Prose, imports and brackets are sampled less.
"""

import random
import re
from dataclasses import dataclass

from tree_sitter import Node

from localdflash.text import syntax

SHARES = {"block": 0.5, "rest": 0.2, "line": 0.1, "node": 0.1, "span": 0.05, "open": 0.05}
MAX_NODE_CHARS = 480  # maximum length of a node; a span is at most a quarter of it
MAX_OPEN_LINES = 6  # missing at the end of an unfinished file
BLOCK_LINES = range(2, 13)
MAX_BLOCK_CHARS = 900
PLAIN_BLOCK_SHARE = 0.35  # share of blocks that are plain: any lines inside a node
FROM_INSIDE_SHARE = 0.4  # share of the other blocks that start at a later line of the node and reach its end
MAX_CLIMBS = 5  # steps to a parent, from a leaf of the tree to the missing node
_LINE = re.compile(r"[^\n]*\S[^\n]*")
_DULL = re.compile(r"\s*(import\b|from\b|#include|[)\]}>;,]+\s*$)")
_PROSE = re.compile("comment|string")
_DULL_SHARE = 0.25  # probability that a sampled dull line is used


@dataclass(frozen=True)
class TrainingGap:
    """Range of missing text in a file, in characters."""

    kind: str  # a key of SHARES
    start: int  # the cursor is here
    end: int

    @property
    def is_open(self) -> bool:
        """Return whether no text follows the gap."""
        return self.kind == "open"


class GapSampler:
    """Sampler of gaps in one text, which has at least one line of code."""

    def __init__(self, language: str, text: str) -> None:
        self._text = text
        self._lines = list(_LINE.finditer(text))
        self._tree = syntax.parse(language, text)
        self._bytes: bytes | None = None if text.isascii() else text.encode()

    def sample(self, rng: random.Random) -> TrainingGap:
        """Return a random gap."""
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        line = self._line(rng)
        code = line.start() + len(line[0]) - len(line[0].lstrip())
        end = line.start() + len(line[0].rstrip())
        if kind == "block":
            return self._block(code, rng) or TrainingGap("line", code, end)
        if kind == "node":
            return self._node(rng.randrange(code, end), rng)
        if kind == "line":  # with the editor's automatic indentation, or without
            return TrainingGap(kind, code if rng.random() < 0.6 else line.start(), end)
        start = rng.randrange(code, end)
        if kind == "span":
            return TrainingGap(kind, start, min(start + rng.randint(1, MAX_NODE_CHARS // 4), len(self._text)))
        if kind == "open":
            return TrainingGap(kind, start, self._after_lines(start, rng.randint(1, MAX_OPEN_LINES)))
        return TrainingGap(kind, start, end)

    def _line(self, rng: random.Random) -> re.Match[str]:
        while True:
            line = rng.choice(self._lines)
            if rng.random() < _DULL_SHARE or not (_DULL.match(line[0]) or self._is_prose(line)):
                return line

    def _is_prose(self, line: re.Match[str]) -> bool:
        """Return whether a line begins inside a comment or a string."""
        node = self._node_at(line.start() + len(line[0]) - len(line[0].lstrip()))
        return node is not None and bool(_PROSE.search(node.type))

    def _node_at(self, offset: int) -> Node | None:
        """Return the smallest named node around a character."""
        at = offset if self._bytes is None else len(self._text[:offset].encode())
        return self._tree.root_node.named_descendant_for_byte_range(at, at + 1) if self._tree else None

    def _after_lines(self, start: int, count: int) -> int:
        end = start
        for _ in range(count):
            end = self._text.find("\n", end + 1)
            if end < 0:
                return len(self._text)
        return end

    def _node(self, offset: int, rng: random.Random) -> TrainingGap:
        """Return a gap from the start of a node around a character, or from inside its first line, to the node's end.

        Without such a node, the gap reaches from the character to the end of its line.
        """
        node = self._node_at(offset)
        for _ in range(rng.randint(0, MAX_CLIMBS)):
            if node is None or node.parent is None or node.parent.end_byte - node.parent.start_byte > MAX_NODE_CHARS:
                break
            node = node.parent
        if node is None or not 0 < node.end_byte - node.start_byte <= MAX_NODE_CHARS:
            return TrainingGap("rest", offset, self._after_lines(offset, 1))
        start, end = self._characters(node.start_byte), self._characters(node.end_byte)
        end = start + len(self._text[start:end].rstrip())
        if rng.random() < 0.4:
            start += rng.randrange(max(len(self._text[start:end].partition("\n")[0]), 1))
        return TrainingGap("node", start, max(end, start + 1))

    def _block(self, offset: int, rng: random.Random) -> TrainingGap | None:
        """Return a gap of several lines inside one of the nodes around a character; None if none has enough lines."""
        plain = rng.random() < PLAIN_BLOCK_SHARE
        spans = list[tuple[int, int]]()
        node = self._node_at(offset)
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
        if plain or rng.random() < FROM_INSIDE_SHARE:
            first = rng.randrange(max(len(starts) - 1, 1))
        if plain:
            count = min(rng.choice(BLOCK_LINES), len(starts) - first)
        elif self._text[end - 1] in ")]}" and rng.random() < 0.5:  # with a bracket that the editor closed
            end = start + len(self._text[start : end - 1].rstrip())
        if plain and first + count < len(starts):
            end = starts[first + count]
            end = starts[first] + len(self._text[starts[first] : end].rstrip())
        start = starts[first]
        if rng.random() < 0.6:  # with the editor's automatic indentation
            start += len(self._text[start:end]) - len(self._text[start:end].lstrip())
        fits = start < end and end - start <= MAX_BLOCK_CHARS and "\n" in self._text[start:end]
        return TrainingGap("block", start, end) if fits else None

    def _characters(self, byte_offset: int) -> int:
        return byte_offset if self._bytes is None else len(self._bytes[:byte_offset].decode("utf-8", "replace"))
