"""A text with its syntax tree, and the one change that leads from a text to another.

Offsets are bytes of UTF-8, as in the trees; only `Source.place` counts characters.
"""

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from tree_sitter import Node

from localdflash.text import syntax

LANGUAGES = {"python", "javascript", "typescript", "tsx"}
_WORD = re.compile(rb"[#$\w\x80-\xff]+")
_DIGITS = b"0123456789"


@dataclass(frozen=True, slots=True)
class Change:
    """The bytes from `start` to `old_end` were replaced by what is now from `start` to `new_end`."""

    start: int
    old_end: int
    new_end: int

    @property
    def growth(self) -> int:
        """The number of bytes that came to be more."""
        return self.new_end - self.old_end

    def moved(self, offset: int) -> int:
        """Where an offset behind or before the change has gone."""
        return offset + self.growth if offset >= self.old_end else offset


@dataclass(frozen=True, slots=True)
class Proposal:
    """An edit: `text` instead of the bytes from `start` to `end`. `pattern` says what it repeats."""

    start: int
    end: int
    text: str
    pattern: Hashable


class Source:
    """A text that was parsed."""

    def __init__(self, language: str, text: str) -> None:
        self.language, self.text = language, text
        self.bytes = text.encode("utf-8", "replace")
        tree = syntax.parse(language, text)
        assert tree
        self.root = tree.root_node

    @property
    def sound(self) -> bool:
        """Whether the text is without errors."""
        return not self.root.has_error

    def cut(self, node: Node) -> str:
        """The text of a node."""
        return self.bytes[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 0, the column in characters."""
        start = self.bytes.rfind(b"\n", 0, offset) + 1
        return self.bytes.count(b"\n", 0, start), len(self.bytes[start:offset].decode("utf-8", "replace"))

    def applied(self, proposal: Proposal) -> str:
        """The text once a proposal is accepted."""
        head, tail = self.bytes[: proposal.start], self.bytes[proposal.end :]
        return head.decode("utf-8", "replace") + proposal.text + tail.decode("utf-8", "replace")

    def leaf(self, start: int, end: int) -> Node | None:
        """The leaf that has just these bytes."""
        node = self.root.descendant_for_byte_range(start, end)
        exact = node is not None and (node.start_byte, node.end_byte, node.child_count) == (start, end, 0)
        return node if exact else None

    def leaves_called(self, name: str) -> Iterator[Node]:
        """The leaves with this text, in the order of the file."""
        wanted = name.encode()
        at = self.bytes.find(wanted)
        while at >= 0:
            start, end = self.word(at, at + len(wanted))
            if end - start == len(wanted) and (leaf := self.leaf(start, end)) is not None:
                yield leaf
            at = self.bytes.find(wanted, max(end, at + 1))

    def word(self, start: int, end: int) -> tuple[int, int]:
        """These bytes with what belongs to the same word before and after them."""
        while start and _WORD.match(self.bytes[start - 1 : start]):
            start -= 1
        while end < len(self.bytes) and _WORD.match(self.bytes[end : end + 1]):
            end += 1
        return start, end

    def is_word(self, start: int, end: int) -> bool:
        """Whether these bytes are one word, and no number."""
        return bool(_WORD.fullmatch(self.bytes, start, end)) and self.bytes[start] not in _DIGITS


def difference(before: bytes, after: bytes) -> Change | None:
    """The smallest piece that differs; None if nothing does."""
    if before == after:
        return None
    shorter = min(len(before), len(after))
    head = _agreeing(shorter, lambda length: before.startswith(after[:length]))
    tail = _agreeing(shorter - head, lambda length: before.endswith(after[len(after) - length :]))
    return Change(head, len(before) - tail, len(after) - tail)


def _agreeing(most: int, agrees: Callable[[int], bool]) -> int:
    """The greatest length that agrees, where each shorter one does, too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if agrees(middle) else (low, middle - 1)
    return low
