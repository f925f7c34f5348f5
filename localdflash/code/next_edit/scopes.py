"""Scopes and roles of identifiers, for all languages."""

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node


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
