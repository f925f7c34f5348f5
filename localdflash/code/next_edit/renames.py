"""Renames: after a name was changed at one site, rename the next occurrence that refers to the same binding."""

import builtins
from dataclasses import dataclass
from difflib import SequenceMatcher
from keyword import kwlist, softkwlist
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.bindings import BindingIndex, Occurrence
from localdflash.code.next_edit.javascript_names import SHORTHAND
from localdflash.code.next_edit.member_uses import find_typed_uses
from localdflash.code.next_edit.signatures import calls, keyword, name_of
from localdflash.code.next_edit.source import Change, EditProposal, ParsedSource, Scope

MIN_SIMILARITY = 0.5  # difflib's ratio of the old and the new name; a use changed to a less similar name is no rename
_BUILTINS = {*dir(builtins), *kwlist, *softkwlist}


class Rename(NamedTuple):
    """Old and new name of a rename."""

    old: str
    new: str


class _RenameSite(NamedTuple):
    """Occurrence of the old name in the text before the rename, and its new text."""

    start: int
    text: str


@dataclass
class RenameRun:
    """Rename in progress. Its sites are resolved once, in the text before the first one was renamed."""

    rename: Rename
    sites: list[_RenameSite]
    growths: dict[int, int]  # renamed sites by `start`: bytes by which each grew
    text: str  # current text of the document
    offered: tuple[_RenameSite, str] | None = None  # the proposed site, and the text after it is accepted

    def follow(self, before: ParsedSource, after: ParsedSource, change: Change) -> bool:
        """Return whether a change renames one more site; if so, record it."""
        site = self._find_renamed_site(before, after, change) if before.text == self.text else None
        if site is None or site.start in self.growths:
            return False
        self.growths[site.start] = len(after.bytes) - len(before.bytes)
        self.text, self.offered = after.text, None
        return True

    def proposal(self, after: ParsedSource, change: Change) -> EditProposal | None:
        """Propose the next site after a change, else the first remaining site; None if no site remains."""
        remaining = [(self._current_offset(site.start), site) for site in self.sites if site.start not in self.growths]
        sites_after = [pair for pair in remaining if pair[0] > change.start]
        if not remaining:
            return None
        start, site = (sites_after or remaining)[0]
        proposal = EditProposal(start, start + len(self.rename.old.encode()), site.text, self.rename)
        self.offered = site, after.apply(proposal)
        return proposal

    def _find_renamed_site(self, before: ParsedSource, after: ParsedSource, change: Change) -> _RenameSite | None:
        if self.offered and after.text == self.offered[1]:
            return self.offered[0]
        if rename_of(before, after, change) != self.rename:
            return None
        start = before.word(change.start, change.old_end)[0]
        return next((site for site in self.sites if self._current_offset(site.start) == start), None)

    def _current_offset(self, start: int) -> int:
        return start + sum(growth for other, growth in self.growths.items() if other < start)


def rename_of(before: ParsedSource, after: ParsedSource, change: Change) -> Rename | None:
    """Return the rename if a change replaced exactly one word, or None."""
    old_start, old_end = before.word(change.start, change.old_end)
    start, end = after.word(change.start, change.new_end)
    if not before.is_word(old_start, old_end) or not after.is_word(start, end):
        return None
    return Rename(before.bytes[old_start:old_end].decode("utf-8", "replace"), after.bytes[start:end].decode())


def start_rename(before: ParsedSource, after: ParsedSource, change: Change) -> RenameRun | None:
    """Return the rename that a change starts; None if it starts none or some use of the name is unclear."""
    rename = rename_of(before, after, change)
    site = before.leaf(*before.word(change.start, change.old_end))
    if rename is None or site is None:
        return None
    names = BindingIndex(before)
    occurrence = names.at(site)
    if occurrence is None or names.is_unclear(rename.old) or names.is_unclear(rename.new):
        return None
    scope = names.scope(occurrence)
    if scope is None:
        return _dangling_rename(after, occurrence, rename)
    references = names.references(rename.old, scope)
    if not _is_rename(before, names, occurrence, references, rename):
        return None
    nodes = [use.node for use in references] + _keywords(before, names, rename.old, scope)
    nodes += find_typed_uses(before, names, rename.old, scope)
    sites = sorted(_site(node, rename) for node in nodes)
    return RenameRun(rename, sites, {site.start_byte: change.growth}, after.text)


def _keywords(source: ParsedSource, names: BindingIndex, name: str, scope: Scope) -> list[Node]:
    """Return the keywords that pass a renamed Python parameter in calls of its function."""
    parameters = scope.node.child_by_field_name("parameters")
    name_node = name_of(source, parameters) if parameters is not None else None
    function = names.at(name_node) if name_node is not None else None
    if source.language != "python" or parameters is None or function is None:
        return []
    sites = (one.node.start_byte for one in names.bindings(name, scope))
    if not any(parameters.start_byte < start < parameters.end_byte for start in sites):
        return []  # another variable of the function
    arguments = (argument for call in calls(source, names, function) for argument in call.items)
    keywords = (argument.child_by_field_name("name") for argument in arguments if keyword(source, argument) == name)
    return [node for node in keywords if node is not None]


def _site(node: Node, rename: Rename) -> _RenameSite:
    return _RenameSite(node.start_byte, f"{rename.old}: {rename.new}" if node.type in SHORTHAND else rename.new)


def _is_rename(
    source: ParsedSource, names: BindingIndex, occurrence: Occurrence, references: list[Occurrence], rename: Rename
) -> bool:
    """Return whether a change renamed a definition, rather than replaced one use by a use of another definition."""
    scope = references[0].role.scope or names.scope(references[0])
    if scope is None or names.visible(rename.new, occurrence.node) is not None:
        return False
    is_builtin = source.language == "python" and rename.new in _BUILTINS
    for other in names.occurrences(rename.new):  # the new name is already in use where the old one is bound
        is_in_scope = scope.node.start_byte <= other.node.start_byte < scope.node.end_byte
        if is_in_scope and (names.scope(other) or rename.new in _BUILTINS):
            return False
    bindings = [other for other in references if other.role.binds]
    if occurrence.role.binds and not occurrence.role.is_imported:
        return occurrence == bindings[0]  # changing a later assignment may introduce a new variable
    if not occurrence.role.binds and any(other.role.is_imported for other in bindings):
        return False  # more likely a use of another imported name
    if occurrence.node.type in SHORTHAND or is_builtin:
        return False
    return SequenceMatcher(None, rename.old.lower(), rename.new.lower()).ratio() >= MIN_SIMILARITY


def _dangling_rename(after: ParsedSource, occurrence: Occurrence, rename: Rename) -> RenameRun | None:
    """Return a rename of all uses of an unbound name after one use was changed to a bound name, or None."""
    names, (old, new), start = BindingIndex(after), rename, occurrence.node.start_byte
    leaf = after.leaf(start, start + len(new.encode()))
    new_occurrence = names.at(leaf) if leaf is not None else None
    if new_occurrence is None or occurrence.role.binds or (after.language == "python" and old in _BUILTINS):
        return None
    scope = names.scope(new_occurrence)
    if scope is None or b"import *" in after.bytes:
        return None
    unbound_uses = [other for other in names.occurrences(old) if not other.role.binds and names.scope(other) is None]
    if new_occurrence.role.scope is not None:  # a member
        uses = [other for other in unbound_uses if other.role.scope == scope]
    else:
        variables = [other for other in unbound_uses if other.role.scope is None]
        uses = [other for other in variables if names.visible(new, other.node) == scope]
    return RenameRun(rename, [_site(other.node, rename) for other in uses], {}, after.text)
