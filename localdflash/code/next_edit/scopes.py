"""Scopes and roles of identifiers, for all languages."""

from dataclasses import dataclass

from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a file that binds names; `members`: those that a class gives to its objects."""

    node: Node
    members: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """The role of an identifier: by default a use of a name.

    `scope` is where the name is bound, or the class that it is a member of; None for a plain use, which is looked up.
    `imported`: the name comes from another file. `declares_outer`: the name is declared as bound further out.
    `is_unclear`: nothing may be concluded from this name.
    """

    scope: Scope | None = None
    binds: bool = False
    imported: bool = False
    declares_outer: bool = False
    is_unclear: bool = False


def is_field(node: Node, name: str) -> bool:
    """Return whether a node is this field of its parent."""
    return node.parent is not None and node.parent.child_by_field_name(name) == node
