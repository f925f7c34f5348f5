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

MIN_SIMILARITY = 0.5  # of two names, by difflib: a use that became a very different name is not a rename
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
        """Propose the next site after a change, or else the first one left; None if none is left."""
        left = [(self._current_offset(site.start), site) for site in self.sites if site.start not in self.growths]
        following = [pair for pair in left if pair[0] > change.start]
        if not left:
            return None
        start, site = (following or left)[0]
        found = EditProposal(start, start + len(self.rename.old.encode()), site.text, self.rename)
        self.offered = site, after.applied(found)
        return found

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
    one = names.at(site)
    if one is None or names.is_unclear(rename.old) or names.is_unclear(rename.new):
        return None
    scope = names.scope(one)
    if scope is None:
        return _dangling_rename(after, one, rename)
    references = names.references(rename.old, scope)
    if not _is_rename(before, names, one, references, rename):
        return None
    nodes = [use.node for use in references] + _keywords(before, names, rename.old, scope)
    nodes += find_typed_uses(before, names, rename.old, scope)
    sites = sorted(_site(node, rename) for node in nodes)
    return RenameRun(rename, sites, {site.start_byte: change.growth}, after.text)


def _keywords(source: ParsedSource, names: BindingIndex, name: str, scope: Scope) -> list[Node]:
    """Return the keywords that pass a renamed Python parameter in calls of its function."""
    parameters = scope.node.child_by_field_name("parameters")
    named = name_of(source, parameters) if parameters is not None else None
    function = names.at(named) if named is not None else None
    if source.language != "python" or parameters is None or function is None:
        return []
    sites = (one.node.start_byte for one in names.bindings(name, scope))
    if not any(parameters.start_byte < start < parameters.end_byte for start in sites):
        return []  # another variable of the function
    given = (argument for call in calls(source, names, function) for argument in call.items)
    found = (argument.child_by_field_name("name") for argument in given if keyword(source, argument) == name)
    return [node for node in found if node is not None]


def _site(node: Node, rename: Rename) -> _RenameSite:
    return _RenameSite(node.start_byte, f"{rename.old}: {rename.new}" if node.type in SHORTHAND else rename.new)


def _is_rename(
    source: ParsedSource, names: BindingIndex, one: Occurrence, references: list[Occurrence], rename: Rename
) -> bool:
    """Return whether a change renamed a thing, rather than replaced a use of it by a use of another thing."""
    inside = references[0].role.scope or names.scope(references[0])
    if inside is None or names.visible(rename.new, one.node) is not None:
        return False
    builtin = source.language == "python" and rename.new in _BUILTINS
    for other in names.occurrences(rename.new):  # the new name is already in use where the old one is bound
        near = inside.node.start_byte <= other.node.start_byte < inside.node.end_byte
        if near and (names.scope(other) or rename.new in _BUILTINS):
            return False
    bound = [other for other in references if other.role.binds]
    if one.role.binds and not one.role.imported:
        return one == bound[0]  # changing a later assignment may introduce a new variable
    if not one.role.binds and any(other.role.imported for other in bound):
        return False  # more likely a use of another imported name
    if one.node.type in SHORTHAND or builtin:
        return False
    return SequenceMatcher(None, rename.old.lower(), rename.new.lower()).ratio() >= MIN_SIMILARITY


def _dangling_rename(after: ParsedSource, one: Occurrence, rename: Rename) -> RenameRun | None:
    """Return a rename of all uses of an unbound name, one of which was changed to a bound name."""
    names, (old, new), start = BindingIndex(after), rename, one.node.start_byte
    fresh = after.leaf(start, start + len(new.encode()))
    known = names.at(fresh) if fresh is not None else None
    if known is None or one.role.binds or (after.language == "python" and old in _BUILTINS):
        return None
    scope = names.scope(known)
    if scope is None or b"import *" in after.bytes:
        return None
    others = [other for other in names.occurrences(old) if not other.role.binds and names.scope(other) is None]
    if known.role.scope is not None:  # a member
        same = [other for other in others if other.role.scope == scope]
    else:
        plain = [other for other in others if other.role.scope is None]
        same = [other for other in plain if names.visible(new, other.node) == scope]
    return RenameRun(rename, [_site(other.node, rename) for other in same], {}, after.text)
