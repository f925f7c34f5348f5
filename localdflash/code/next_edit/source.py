"""Data types of the next-edit rules: parsed texts, the change between two texts, and the roles of identifiers.

Offsets are in UTF-8 bytes, as in tree-sitter; only `ParsedSource.line_and_column` counts characters.
"""

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import AnyStr

from tree_sitter import Node

from localdflash.text import syntax

LANGUAGES = {"python", "javascript", "typescript", "tsx"}
_WORD = re.compile(rb"[#$\w\x80-\xff]+")


@dataclass(frozen=True, slots=True)
class Change:
    """Replacement of the old text's bytes from `start` to `old_end` by the new text's from `start` to `new_end`."""

    start: int
    old_end: int
    new_end: int

    @property
    def growth(self) -> int:
        """Return the number of bytes that the text grew by."""
        return self.new_end - self.old_end

    def to_new_offset(self, offset: int) -> int:
        """Return the offset in the new text of an old offset outside of the change."""
        return offset + self.growth if offset >= self.old_end else offset


@dataclass(frozen=True, slots=True)
class EditProposal:
    """Proposal to replace the bytes from `start` to `end` by `text`. Proposals of one repeated edit share `pattern`."""

    start: int
    end: int
    text: str
    pattern: Hashable


class ParsedSource:
    """Text with its syntax tree."""

    def __init__(self, language: str, text: str) -> None:
        self.language, self.text = language, text
        self.bytes = text.encode("utf-8", "replace")
        tree = syntax.parse(language, text)
        assert tree
        self.root = tree.root_node

    @property
    def is_valid(self) -> bool:
        """Return whether the text has no syntax errors."""
        return not self.root.has_error

    def text_of(self, node: Node) -> str:
        """Return the text of a node."""
        return self.bytes[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both 0-based, the column in characters."""
        start = self.bytes.rfind(b"\n", 0, offset) + 1
        return self.bytes.count(b"\n", 0, start), len(self.bytes[start:offset].decode("utf-8", "replace"))

    def apply(self, proposal: EditProposal) -> str:
        """Return the text with a proposal accepted."""
        head, tail = self.bytes[: proposal.start], self.bytes[proposal.end :]
        return head.decode("utf-8", "replace") + proposal.text + tail.decode("utf-8", "replace")

    def leaf(self, start: int, end: int) -> Node | None:
        """Return the leaf that spans exactly these bytes, or None."""
        node = self.root.descendant_for_byte_range(start, end)
        exact = node is not None and (node.start_byte, node.end_byte, node.child_count) == (start, end, 0)
        return node if exact else None

    def leaves_called(self, name: str) -> Iterator[Node]:
        """Yield the leaves with this text, in file order."""
        name_bytes = name.encode()
        at = self.bytes.find(name_bytes)
        while at >= 0:
            start, end = self.word(at, at + len(name_bytes))
            if end - start == len(name_bytes) and (leaf := self.leaf(start, end)) is not None:
                yield leaf
            at = self.bytes.find(name_bytes, max(end, at + 1))

    def word(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end of a range extended to whole words."""
        while start and _WORD.match(self.bytes[start - 1 : start]):
            start -= 1
        while end < len(self.bytes) and _WORD.match(self.bytes[end : end + 1]):
            end += 1
        return start, end

    def is_word(self, start: int, end: int) -> bool:
        """Return whether these bytes are one word and not a number."""
        return bool(_WORD.fullmatch(self.bytes, start, end)) and not self.bytes[start : start + 1].isdigit()


def difference(before: AnyStr, after: AnyStr) -> Change | None:
    """Return the shortest replacement that turns `before` into `after`; None if they are equal."""
    if before == after:
        return None
    shorter = min(len(before), len(after))
    lengths = range(1, shorter + 1)  # bisected by a key that is False, then True
    head = bisect_left(lengths, True, key=lambda length: not before.startswith(after[:length]))
    tail_lengths = lengths[: shorter - head]
    tail = bisect_left(tail_lengths, True, key=lambda length: not before.endswith(after[len(after) - length :]))
    return Change(head, len(before) - tail, len(after) - tail)


@dataclass(frozen=True, slots=True)
class Scope:
    """Node that can bind names. `has_members`: the names are members of a class, not local names."""

    node: Node
    has_members: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Role of an identifier. The default is the use of a name that must be looked up."""

    scope: Scope | None = None  # scope that binds the name, or class of a member; None: must be looked up
    binds: bool = False
    is_imported: bool = False  # bound by an import without `as`: another file defines the name
    declares_outer: bool = False  # `global`, `nonlocal`
    is_unclear: bool = False  # the rules do not understand this use


def outward(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield (node, parent) from this node up to the root."""
    while (parent := node.parent) is not None:
        yield node, parent
        node = parent


def is_field(node: Node, name: str) -> bool:
    """Return whether a node is the field `name` of its parent."""
    return node.parent is not None and node.parent.child_by_field_name(name) == node
