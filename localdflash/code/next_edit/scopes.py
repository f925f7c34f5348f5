"""The words in which languages say what an identifier is."""

from dataclasses import dataclass

from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a file that names belong to; `members`: those that a class gives to its objects."""

    node: Node
    members: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What an identifier is: a use of a name, unless one of these says something else.

    `scope` is where it is bound or of which class it is a member; a plain use has none, its scope is looked for.
    `imported`: it has the name that another file gave it. `declares_outer`: it says that the scope's name is bound
    further out. `is_unclear`: nothing should be concluded from this name.
    """

    scope: Scope | None = None
    binds: bool = False
    imported: bool = False
    declares_outer: bool = False
    is_unclear: bool = False


def is_field(node: Node, name: str) -> bool:
    """Whether a node is this field of its parent."""
    return node.parent is not None and node.parent.child_by_field_name(name) == node
