"""A text with its syntax tree, the one change that leads from one text to another, and the roles of identifiers.

Offsets are UTF-8 bytes, as in the trees; only `ParsedSource.place` counts characters.
"""

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tree_sitter import Node

from localdflash.text import syntax

LANGUAGES = {"python", "javascript", "typescript", "tsx"}
_WORD = re.compile(rb"[#$\w\x80-\xff]+")


@dataclass(frozen=True, slots=True)
class Change:
    """Replacement of the bytes from `start` to `old_end`; the new ones end at `new_end`."""

    start: int
    old_end: int
    new_end: int

    @property
    def growth(self) -> int:
        """Return the number of bytes added."""
        return self.new_end - self.old_end

    def moved(self, offset: int) -> int:
        """Return the new offset of one before or behind the change."""
        return offset + self.growth if offset >= self.old_end else offset


@dataclass(frozen=True, slots=True)
class EditProposal:
    """Proposed `text` instead of the bytes from `start` to `end`. `pattern` identifies the repeated edit."""

    start: int
    end: int
    text: str
    pattern: Hashable


class ParsedSource:
    """Parsed text."""

    def __init__(self, language: str, text: str) -> None:
        self.language, self.text = language, text
        self.bytes = text.encode("utf-8", "replace")
        tree = syntax.parse(language, text)
        assert tree
        self.root = tree.root_node

    @property
    def sound(self) -> bool:
        """Return whether the text has no syntax errors."""
        return not self.root.has_error

    def cut(self, node: Node) -> str:
        """Return the text of a node."""
        return self.bytes[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 0, the column in characters."""
        start = self.bytes.rfind(b"\n", 0, offset) + 1
        return self.bytes.count(b"\n", 0, start), len(self.bytes[start:offset].decode("utf-8", "replace"))

    def applied(self, proposal: EditProposal) -> str:
        """Return the text with a proposal accepted."""
        head, tail = self.bytes[: proposal.start], self.bytes[proposal.end :]
        return head.decode("utf-8", "replace") + proposal.text + tail.decode("utf-8", "replace")

    def leaf(self, start: int, end: int) -> Node | None:
        """Return the leaf with exactly these bytes."""
        node = self.root.descendant_for_byte_range(start, end)
        exact = node is not None and (node.start_byte, node.end_byte, node.child_count) == (start, end, 0)
        return node if exact else None

    def leaves_called(self, name: str) -> Iterator[Node]:
        """Yield the leaves with this text, in the order of the file."""
        spelled = name.encode()
        at = self.bytes.find(spelled)
        while at >= 0:
            start, end = self.word(at, at + len(spelled))
            if end - start == len(spelled) and (leaf := self.leaf(start, end)) is not None:
                yield leaf
            at = self.bytes.find(spelled, max(end, at + 1))

    def word(self, start: int, end: int) -> tuple[int, int]:
        """Extend these bytes to whole words."""
        while start and _WORD.match(self.bytes[start - 1 : start]):
            start -= 1
        while end < len(self.bytes) and _WORD.match(self.bytes[end : end + 1]):
            end += 1
        return start, end

    def is_word(self, start: int, end: int) -> bool:
        """Return whether these bytes are one word, and no number."""
        return bool(_WORD.fullmatch(self.bytes, start, end)) and not self.bytes[start : start + 1].isdigit()


def difference(before: bytes, after: bytes) -> Change | None:
    """Return the smallest differing piece; None if the texts are equal."""
    if before == after:
        return None
    shorter = min(len(before), len(after))
    lengths = range(1, shorter + 1)  # bisection: `True` sorts after `False`
    head = bisect_left(lengths, True, key=lambda length: not before.startswith(after[:length]))
    rest = lengths[: shorter - head]
    tail = bisect_left(rest, True, key=lambda length: not before.endswith(after[len(after) - length :]))
    return Change(head, len(before) - tail, len(after) - tail)


@dataclass(frozen=True, slots=True)
class Scope:
    """Part of a file that binds names; `members`: the members of a class, not the names of its body."""

    node: Node
    members: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Role of an identifier; by default it uses a name."""

    scope: Scope | None = None  # that binds the name, or the class that it is a member of; None: to be looked up
    binds: bool = False
    imported: bool = False
    declares_outer: bool = False  # `global`, `nonlocal`
    is_unclear: bool = False


def outward(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield each node from this one outward with its parent."""
    while (parent := node.parent) is not None:
        yield node, parent
        node = parent


def is_field(node: Node, name: str) -> bool:
    """Return whether a node is this field of its parent."""
    return node.parent is not None and node.parent.child_by_field_name(name) == node
