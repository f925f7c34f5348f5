"""Repeated edits: an edit of a syntax node is proposed again in the next statements of the same type.

One edit is enough if the node is a name such as an attribute or type, and the next statement has that name in the
same position. Any other edit must have been made twice, in nearby statements.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.source import Change, EditProposal, ParsedSource

MAX_STATEMENTS = 3  # number of following statements that are searched if an edit was made twice
MIN_NAME_CHARS = 3  # one edit of a shorter name is not enough for a proposal
_NAME_FIELDS = {"attribute", "property", "function", "type", "constructor", "field"}


class _PathStep(NamedTuple):
    """Step from a node to a child: the child's field name or number (-1: last), and its type."""

    field: str | int
    type: str


class EditPattern(NamedTuple):
    """Repeatable edit: the path from statement to node, its old and new text, and the text put around it, if any."""

    path: tuple[_PathStep, ...]
    old: str
    new: str
    around: tuple[str, str] | None

    def is_like(self, other: "EditPattern") -> bool:
        """Return whether both edits made the same change at the same path."""
        same_text = (self.old, self.new) == (other.old, other.new)
        return self.path == other.path and (same_text or (self.around is not None and self.around == other.around))


class _Edit(NamedTuple):
    """Edit with its node and the statement around the node that begins the line."""

    pattern: EditPattern
    node: Node
    statement: Node


def next_repetition(
    before: ParsedSource, after: ParsedSource, change: Change, earlier: tuple[ParsedSource, Change] | None
) -> EditProposal | None:
    """Return the next repetition of `change`, or None. `earlier`: the text before the previous edit, and that edit."""
    edit = _parse_edit(before, after, change)
    if edit is None:
        return None
    last = _parse_edit(earlier[0], before, earlier[1]) if earlier else None
    twice = earlier and last and last.pattern.is_like(edit.pattern) and _follows(edit, last, earlier[1])
    if not twice and not _is_enough_alone(edit):
        return None
    for statement in islice(_following(edit.statement), MAX_STATEMENTS if twice else 1):
        if proposal := _repeat(before, change, edit.pattern, statement, around=bool(twice)):
            return proposal
    return None


def _parse_edit(before: ParsedSource, after: ParsedSource, change: Change) -> _Edit | None:
    node = edited_node(before, change)
    if node is None or b"\n" in after.bytes[change.start : change.new_end]:
        return None
    statement = _statement(before, node)
    if statement is None:
        return None
    old = before.text_of(node)
    new = after.bytes[node.start_byte : node.end_byte + change.growth].decode("utf-8", "replace")
    return _Edit(EditPattern(_path(statement, node), old, new, _added_around(old, new)), node, statement)


def _added_around(old: str, new: str) -> tuple[str, str] | None:
    """Return the texts added before and after `old`; None unless `old` is exactly once in `new`, as whole words."""
    before, after = (r"(?<![\w$])" if old[:1].isalnum() else ""), (r"(?![\w$])" if old[-1:].isalnum() else "")
    matches = [*re.finditer(before + re.escape(old) + after, new)]
    return (new[: matches[0].start()], new[matches[0].end() :]) if old and len(matches) == 1 else None


def edited_node(source: ParsedSource, change: Change) -> Node | None:
    """Return the smallest node around the replaced text; for an insertion, the leaf next to it, or None."""
    start, end = change.start, change.old_end
    if start < end or not start:
        return source.root.descendant_for_byte_range(start, end)
    behind = source.root.descendant_for_byte_range(start - 1, start)
    ahead = source.root.descendant_for_byte_range(start, start + 1)
    touching = [node for node in (behind, ahead) if node is not None and start in (node.start_byte, node.end_byte)]
    leaves = [node for node in touching if node.child_count == 0]
    return next((node for node in leaves if node.is_named), leaves[0] if leaves else ahead)


def _statement(source: ParsedSource, node: Node) -> Node | None:
    """Return the innermost enclosing node that begins its line and is followed by a sibling of its type."""
    while (parent := node.parent) is not None:
        line = source.bytes.rfind(b"\n", 0, node.start_byte) + 1
        starts = not source.bytes[line : node.start_byte].strip()
        if starts and node.is_named and next(_following(node), None) is not None:
            return node
        node = parent
    return None


def _following(statement: Node) -> Iterator[Node]:
    """Yield the siblings after a statement on later lines, up to the first sibling of another type."""
    current = statement
    while (sibling := current.next_named_sibling) is not None and sibling.type == statement.type:
        if sibling.start_point.row <= current.end_point.row:
            return
        yield sibling
        current = sibling


def _follows(edit: _Edit, last: _Edit, last_change: Change) -> bool:
    """Return whether the previous edit was in one of the `MAX_STATEMENTS` statements before this edit."""
    starts = {last_change.to_new_offset(last.statement.start_byte), last.statement.start_byte}
    sibling = edit.statement.prev_named_sibling
    for _ in range(MAX_STATEMENTS):
        if sibling is not None and sibling.start_byte in starts:
            return True
        sibling = sibling.prev_named_sibling if sibling is not None else None
    return False


def _is_enough_alone(edit: _Edit) -> bool:
    """Return whether one edit is enough: of a name in a naming field, not of a variable or a value."""
    step = edit.pattern.path[-1]
    is_name = "identifier" in step.type and edit.node.child_count == 0 and len(edit.pattern.old) >= MIN_NAME_CHARS
    return is_name and step.field in _NAME_FIELDS


def _path(statement: Node, node: Node) -> tuple[_PathStep, ...]:
    steps = []
    while node != statement and node.parent is not None:
        steps.append(_step(node.parent, node))
        node = node.parent
    return (_PathStep(0, statement.type), *reversed(steps))


def _step(parent: Node, node: Node) -> _PathStep:
    number = next(number for number, child in enumerate(parent.children) if child == node)
    field = parent.field_name_for_child(number)
    if field and parent.child_by_field_name(field) == node:
        return _PathStep(field, node.type)
    last = number == parent.child_count - 1 and number > 0
    return _PathStep(-1 if last else number, node.type)  # -1: also matches the last child of a longer list


def _find(node: Node, path: tuple[_PathStep, ...]) -> Node | None:
    for step in path[1:]:
        if isinstance(step.field, str):
            child = node.child_by_field_name(step.field)
        else:
            child = node.children[step.field] if step.field < node.child_count else None
        if child is None or child.type != step.type:
            return None
        node = child
    return node


def _repeat(
    before: ParsedSource, change: Change, pattern: EditPattern, statement: Node, *, around: bool
) -> EditProposal | None:
    node = _find(statement, pattern.path)
    if node is None or node.start_point.row != node.end_point.row:
        return None
    old = before.text_of(node)
    if old == pattern.old:
        new = pattern.new
    elif around and pattern.around is not None and old != pattern.new:
        new = pattern.around[0] + old + pattern.around[1]
    else:
        return None
    start, end = change.to_new_offset(node.start_byte), change.to_new_offset(node.end_byte)
    if new.startswith(old):
        return EditProposal(end, end, new[len(old) :], pattern)
    if new.endswith(old):
        return EditProposal(start, start, new[: -len(old)], pattern)
    return EditProposal(start, end, new, pattern)
