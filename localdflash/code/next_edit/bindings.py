"""Resolve the identifiers of one file, without types. Members are resolved only on `self`, `cls` or `this`."""

from dataclasses import dataclass
from functools import cache

from tree_sitter import Node

from localdflash.code.next_edit import javascript_names, python_names
from localdflash.code.next_edit.source import ParsedSource, Role, Scope


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Identifier node with its role."""

    node: Node
    role: Role


class BindingIndex:
    """Resolver of the names in one source."""

    def __init__(self, source: ParsedSource) -> None:
        self._source = source
        is_python = source.language == "python"
        self._role_of = python_names.role if is_python else javascript_names.role
        self._scopes_of = python_names.scopes if is_python else javascript_names.scopes
        self.occurrences = cache(self._find_occurrences)
        self._binding_scopes = cache(lambda name: {one.role.scope for one in self.occurrences(name) if one.role.binds})

    def _find_occurrences(self, name: str) -> list[Occurrence]:
        """Return the occurrences of a name in file order. In a scope that declares it `global`, bindings are uses."""
        roles = ((node, self._role_of(node)) for node in self._source.leaves_called(name))
        occurrences = [Occurrence(node, role) for node, role in roles if role]
        outer_scopes = {one.role.scope for one in occurrences if one.role.declares_outer}
        return [Occurrence(one.node, Role()) if one.role.scope in outer_scopes else one for one in occurrences]

    def at(self, node: Node) -> Occurrence | None:
        """Return the occurrence at a leaf, or None."""
        return next((one for one in self.occurrences(self._source.text_of(node)) if one.node == node), None)

    def is_unclear(self, name: str) -> bool:
        """Return whether some use of the name cannot be resolved reliably."""
        return any(
            one.role.is_unclear or self._reads_outer_name(name, one) or self._is_misread_global(name, one)
            for one in self.occurrences(name)
        )

    def _reads_outer_name(self, name: str, occurrence: Occurrence) -> bool:
        """Return whether a class body reads a name before binding it, as in `x = x`: this reads the outer `x`."""
        scope = None if occurrence.role.scope else self.visible(name, occurrence.node)
        if scope is None or not scope.has_members:
            return False
        statement = self.bindings(name, scope)[0].node
        while statement.parent is not None and statement.parent.parent != scope.node:
            statement = statement.parent
        return occurrence.node.start_byte < statement.end_byte

    def bindings(self, name: str, scope: Scope) -> list[Occurrence]:
        """Return the occurrences that bind a name in a scope."""
        return [one for one in self.occurrences(name) if one.role.binds and one.role.scope == scope]

    def scope(self, occurrence: Occurrence) -> Scope | None:
        """Return the scope that binds the occurrence's name; None if nothing in this file does."""
        name = self._source.text_of(occurrence.node)
        if occurrence.role.scope is None:
            return self.visible(name, occurrence.node)
        return occurrence.role.scope if occurrence.role.binds or self.bindings(name, occurrence.role.scope) else None

    def visible(self, name: str, node: Node) -> Scope | None:
        """Return the scope whose binding a name at this node would refer to; None if the file does not bind it."""
        binding_scopes = self._binding_scopes(name)
        return next((scope for scope in self._scopes_of(node) if scope in binding_scopes), None)

    def references(self, name: str, scope: Scope) -> list[Occurrence]:
        """Return all occurrences of a name that refer to its binding in a scope, bindings included."""
        return [one for one in self.occurrences(name) if self.scope(one) == scope]

    def _is_misread_global(self, name: str, occurrence: Occurrence) -> bool:
        """Return whether an occurrence in a `global` statement would be resolved to a name that is not global."""
        statement = occurrence.node.parent
        if statement is None or statement.type != "global_statement":
            return False
        scope = self.visible(name, occurrence.node)
        return scope is not None and scope.node.parent is not None
