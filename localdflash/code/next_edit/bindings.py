"""Resolve identifiers: where names are bound, and which binding a use refers to.

Only from one file and without types. A member of a class is known where it is defined in the class and used through
`self` or `this`. An attribute of anything else is unknown, and so is a word in a string or a comment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tree_sitter import Node

from localdflash.code.next_edit import javascript_names, python_names
from localdflash.code.next_edit.scopes import Role, Scope
from localdflash.code.next_edit.source import ParsedSource


class _Grammar(Protocol):
    """The language-dependent part."""

    def role(self, node: Node) -> Role | None:
        """Return the role of an identifier; None if it names nothing known here."""

    def scopes(self, node: Node) -> Iterator[Scope]:
        """Yield the scopes where a use at this node is looked up, innermost first."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An identifier and its role."""

    node: Node
    role: Role


class BindingIndex:
    """The names of a source."""

    def __init__(self, source: ParsedSource) -> None:
        self._source = source
        self._grammar: _Grammar = python_names if source.language == "python" else javascript_names
        self._found: dict[str, list[Occurrence]] = {}
        self._binding: dict[str, set[Scope | None]] = {}

    def occurrences(self, name: str) -> list[Occurrence]:
        """Return the identifiers of this name, in the order of the file."""
        if name not in self._found:
            roles = ((node, self._grammar.role(node)) for node in self._source.leaves_called(name))
            self._found[name] = _as_declared([Occurrence(node, role) for node, role in roles if role])
        return self._found[name]

    def at(self, node: Node) -> Occurrence | None:
        """Return the occurrence at a leaf."""
        return next((one for one in self.occurrences(self._source.cut(node)) if one.node == node), None)

    def is_unclear(self, name: str) -> bool:
        """Return whether the name is used in a way that is not understood here."""
        doubts = (self._precedes_its_class, self._skips_a_function)
        return any(one.role.is_unclear or any(doubt(name, one) for doubt in doubts) for one in self.occurrences(name))

    def _precedes_its_class(self, name: str, one: Occurrence) -> bool:
        """Return whether a class body reads a name before it binds it: `x = x` reads another one."""
        scope = None if one.role.scope else self.visible(name, one.node)
        if scope is None or not scope.members:
            return False
        statement = self.bindings(name, scope)[0].node
        while statement.parent is not None and statement.parent.parent != scope.node:
            statement = statement.parent
        return one.node.start_byte < statement.end_byte

    def bindings(self, name: str, scope: Scope) -> list[Occurrence]:
        """Return where a name is bound in a scope."""
        return [one for one in self.occurrences(name) if one.role.binds and one.role.scope == scope]

    def scope(self, one: Occurrence) -> Scope | None:
        """Return the scope that binds the occurrence's name; None if nothing in this file does."""
        name = self._source.cut(one.node)
        if one.role.scope is None:
            return self.visible(name, one.node)
        return one.role.scope if one.role.binds or self.bindings(name, one.role.scope) else None

    def visible(self, name: str, node: Node) -> Scope | None:
        """Return the scope that a name at this node would refer to."""
        if name not in self._binding:
            self._binding[name] = {one.role.scope for one in self.occurrences(name) if one.role.binds}
        bound = self._binding[name]
        return next((scope for scope in self._grammar.scopes(node) if scope in bound), None)

    def meant(self, name: str, scope: Scope) -> list[Occurrence]:
        """Return all occurrences of a name that refer to its binding in a scope."""
        return [one for one in self.occurrences(name) if self.scope(one) == scope]

    def _skips_a_function(self, name: str, one: Occurrence) -> bool:
        """Return whether `global` refers to another binding than the visible one."""
        outer = one.node.parent
        if outer is None or outer.type != "global_statement":
            return False
        scope = self.visible(name, one.node)
        return scope is not None and scope.node.parent is not None


def _as_declared(found: list[Occurrence]) -> list[Occurrence]:
    """Apply `global` and `nonlocal`: an assignment below them binds nothing there."""
    elsewhere = {one.role.scope for one in found if one.role.declares_outer}
    if not elsewhere:
        return found
    use = Role()
    return [
        Occurrence(one.node, use) if one.role.declares_outer or one.role.scope in elsewhere else one for one in found
    ]
