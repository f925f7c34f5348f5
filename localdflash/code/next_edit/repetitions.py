"""The same edit on the same kind of syntax node was made in one line: the line after it where it can be made again.

An edit is one where a node became another text, or got some text around it. Once is enough where the node names
something (a function, an attribute, a type) and the very next statement has the same name at the same place; anything
else must have been done twice, in statements that follow each other.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.source import Change, Proposal, Source

NEAR = 3  # statements after the edited one that are looked at, once it is known that an edit is repeated
SHORTEST = 3  # characters of a name that is found again by itself
_NAMING = {"attribute", "property", "function", "type", "constructor", "field"}


class _Step(NamedTuple):
    """From a node to one below it: a field's name, or the number among the children, and the type there."""

    field: str | int
    type: str


class Repeated(NamedTuple):
    """An edit as it can be made elsewhere: the way to the node, what it became, what came around it (or None)."""

    way: tuple[_Step, ...]
    old: str
    new: str
    around: tuple[str, str] | None

    def is_like(self, other: "Repeated") -> bool:
        """Whether both are the same edit of two places."""
        same_text = (self.old, self.new) == (other.old, other.new)
        return self.way == other.way and (same_text or (self.around is not None and self.around == other.around))


@dataclass(frozen=True)
class _Edit:
    """An edit, its node and the statement that begins the line."""

    repeated: Repeated
    node: Node
    statement: Node


def next_repetition(
    before: Source, after: Source, change: Change, earlier: tuple[Source, Change] | None
) -> Proposal | None:
    """Where the change can be made again. `earlier`: the text before the last edit but one, and that edit."""
    edit = _edit(before, after, change)
    if edit is None:
        return None
    last = _edit(earlier[0], before, earlier[1]) if earlier else None
    twice = last is not None and last.repeated.is_like(edit.repeated) and _follows(edit, last, earlier)
    if not twice and not _is_telling(edit):
        return None
    for statement in islice(_following(edit.statement), NEAR if twice else 1):
        if found := _again(before, change, edit.repeated, statement, around=twice):
            return found
    return None


def _edit(before: Source, after: Source, change: Change) -> _Edit | None:
    """What a change did to a node."""
    node = _node(before, change)
    if node is None or b"\n" in after.bytes[change.start : change.new_end]:
        return None
    statement = _statement(before, node)
    if statement is None:
        return None
    old = before.cut(node)
    new = after.bytes[node.start_byte : node.end_byte + change.growth].decode("utf-8", "replace")
    return _Edit(Repeated(_way(statement, node), old, new, _around(old, new)), node, statement)


def _around(old: str, new: str) -> tuple[str, str] | None:
    """What was put before and after a text, if it is still there, as whole words and just once."""
    before, after = (r"(?<![\w$])" if old[:1].isalnum() else ""), (r"(?![\w$])" if old[-1:].isalnum() else "")
    found = [*re.finditer(before + re.escape(old) + after, new)]
    return (new[: found[0].start()], new[found[0].end() :]) if old and len(found) == 1 else None


def _node(source: Source, change: Change) -> Node | None:
    """The smallest node that holds what was replaced, or that text was added to."""
    start, end = change.start, change.old_end
    if start < end or not start:
        return source.root.descendant_for_byte_range(start, end)
    behind = source.root.descendant_for_byte_range(start - 1, start)
    ahead = source.root.descendant_for_byte_range(start, start + 1)
    touching = [one for one in (behind, ahead) if one is not None and start in (one.start_byte, one.end_byte)]
    leaves = [one for one in touching if one.child_count == 0]
    return next((one for one in leaves if one.is_named), leaves[0] if leaves else ahead)


def _statement(source: Source, node: Node) -> Node | None:
    """The innermost node around this one that begins its line and has others like it after it."""
    while (parent := node.parent) is not None:
        line = source.bytes.rfind(b"\n", 0, node.start_byte) + 1
        starts = not source.bytes[line : node.start_byte].strip()
        if starts and node.is_named and next(_following(node), None) is not None:
            return node
        node = parent
    return None


def _following(statement: Node) -> Iterator[Node]:
    """The nodes after one that are of the same type, each on later lines, to the first that is of another."""
    one = statement
    while (other := one.next_named_sibling) is not None and other.type == statement.type:
        if other.start_point.row <= one.end_point.row:
            return
        yield other
        one = other


def _follows(edit: _Edit, last: _Edit, earlier: tuple[Source, Change] | None) -> bool:
    """Whether the edit before was made in a statement shortly before this one."""
    assert earlier
    starts = {earlier[1].moved(last.statement.start_byte), last.statement.start_byte}
    one = edit.statement.prev_named_sibling
    for _ in range(NEAR):
        if one is not None and one.start_byte in starts:
            return True
        one = one.prev_named_sibling if one is not None else None
    return False


def _is_telling(edit: _Edit) -> bool:
    """Whether one example is enough: a name that is used for something, not a variable or a value."""
    step = edit.repeated.way[-1] if edit.repeated.way else None
    plain = step is not None and "identifier" in step.type and edit.node.child_count == 0
    return plain and step is not None and step.field in _NAMING and len(edit.repeated.old) >= SHORTEST


def _way(statement: Node, node: Node) -> tuple[_Step, ...]:
    """The steps that lead down to a node; the first is the statement itself."""
    steps = []
    while node != statement and node.parent is not None:
        steps.append(_step(node.parent, node))
        node = node.parent
    return (_Step(0, statement.type), *reversed(steps))


def _step(parent: Node, node: Node) -> _Step:
    number = next(number for number, child in enumerate(parent.children) if child == node)
    named = parent.field_name_for_child(number)
    if named and parent.child_by_field_name(named) == node:
        return _Step(named, node.type)
    last = number == parent.child_count - 1 and number > 0
    return _Step(-1 if last else number, node.type)  # what closes a list closes a longer one, too


def _went(node: Node, way: tuple[_Step, ...]) -> Node | None:
    """The node that the same steps lead to."""
    for step in way[1:]:
        if isinstance(step.field, str):
            below = node.child_by_field_name(step.field)
        else:
            below = node.children[step.field] if step.field < node.child_count else None
        if below is None or below.type != step.type:
            return None
        node = below
    return node


def _again(before: Source, change: Change, edit: Repeated, statement: Node, *, around: bool) -> Proposal | None:
    """The edit in another statement."""
    node = _went(statement, edit.way)
    if node is None or node.start_point.row != node.end_point.row:
        return None
    old = before.cut(node)
    if old == edit.old:
        new = edit.new
    elif around and edit.around is not None and old != edit.new:
        new = edit.around[0] + old + edit.around[1]
    else:
        return None
    start, end = change.moved(node.start_byte), change.moved(node.end_byte)
    if new.startswith(old):
        return Proposal(end, end, new[len(old) :], edit)
    if new.endswith(old):
        return Proposal(start, start, new[: -len(old)], edit)
    return Proposal(start, end, new, edit)
