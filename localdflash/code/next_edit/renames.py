"""Renames: a name was changed at one place; propose the next place with the same meaning."""

import builtins
from dataclasses import dataclass
from difflib import SequenceMatcher
from keyword import kwlist, softkwlist
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.bindings import BindingIndex, Occurrence
from localdflash.code.next_edit.javascript_names import SHORTHAND
from localdflash.code.next_edit.member_uses import typed_members
from localdflash.code.next_edit.signatures import calls, keyword, name_of
from localdflash.code.next_edit.source import Change, EditProposal, ParsedSource, Scope

MIN_SIMILARITY = 0.5  # of two names, as difflib counts: a use that changes into another kind of name is no rename
_BUILTINS = {*dir(builtins), *kwlist, *softkwlist}


class Rename(NamedTuple):
    """Old and new name."""

    old: str
    new: str


class _RenameSite(NamedTuple):
    """Occurrence of the old name in the text that a run began with, and its new text."""

    start: int
    text: str


@dataclass
class RenameRun:
    """Rename in progress. Its sites are resolved once, at the start, while none has the new name."""

    rename: Rename
    places: list[_RenameSite]
    done: dict[int, int]  # growth in bytes of each renamed site
    text: str  # so far
    offered: tuple[_RenameSite, str] | None = None  # and the text once it is accepted

    def follow(self, before: ParsedSource, after: ParsedSource, change: Change) -> bool:
        """Record a change and return True if it renames one more site."""
        place = self._changed(before, after, change) if before.text == self.text else None
        if place is None or place.start in self.done:
            return False
        self.done[place.start] = len(after.bytes) - len(before.bytes)
        self.text, self.offered = after.text, None
        return True

    def proposal(self, after: ParsedSource, change: Change) -> EditProposal | None:
        """Return the next site after a change, or else the first of all."""
        left = [(self._now(place.start), place) for place in self.places if place.start not in self.done]
        following = [pair for pair in left if pair[0] > change.start]
        if not left:
            return None
        start, place = (following or left)[0]
        found = EditProposal(start, start + len(self.rename.old.encode()), place.text, self.rename)
        self.offered = place, after.applied(found)
        return found

    def _changed(self, before: ParsedSource, after: ParsedSource, change: Change) -> _RenameSite | None:
        if self.offered and after.text == self.offered[1]:
            return self.offered[0]
        if rename_of(before, after, change) != self.rename:
            return None
        start = before.word(change.start, change.old_end)[0]
        return next((place for place in self.places if self._now(place.start) == start), None)

    def _now(self, start: int) -> int:
        return start + sum(growth for done, growth in self.done.items() if done < start)


def rename_of(before: ParsedSource, after: ParsedSource, change: Change) -> Rename | None:
    """Return the rename if a change replaced exactly one word."""
    old_start, old_end = before.word(change.start, change.old_end)
    start, end = after.word(change.start, change.new_end)
    if not before.is_word(old_start, old_end) or not after.is_word(start, end):
        return None
    return Rename(before.bytes[old_start:old_end].decode("utf-8", "replace"), after.bytes[start:end].decode())


def begun_rename(before: ParsedSource, after: ParsedSource, change: Change) -> RenameRun | None:
    """Return the rename that a change begins, if a name was changed and its other sites are known."""
    rename = rename_of(before, after, change)
    place = before.leaf(*before.word(change.start, change.old_end))
    if rename is None or place is None:
        return None
    names = BindingIndex(before)
    one = names.at(place)
    if one is None or names.is_unclear(rename.old) or names.is_unclear(rename.new):
        return None
    scope = names.scope(one)
    if scope is None:
        return _dangling_rename(after, one, rename)
    meant = names.meant(rename.old, scope)
    if not _is_rename(before, names, one, meant, rename):
        return None
    nodes = [use.node for use in meant] + _keywords(before, names, rename.old, scope)
    nodes += typed_members(before, names, rename.old, scope)
    places = sorted(_place(node, rename) for node in nodes)
    return RenameRun(rename, places, {place.start_byte: change.growth}, after.text)


def _keywords(source: ParsedSource, names: BindingIndex, name: str, scope: Scope) -> list[Node]:
    """Return where calls name a Python parameter of a function."""
    parameters = scope.node.child_by_field_name("parameters")
    named = name_of(source, parameters) if parameters is not None else None
    function = names.at(named) if named is not None else None
    if source.language != "python" or parameters is None or function is None:
        return []
    places = (one.node.start_byte for one in names.bindings(name, scope))
    if not any(parameters.start_byte < start < parameters.end_byte for start in places):
        return []  # another variable of the function
    given = (argument for call in calls(source, names, function) for argument in call.items)
    found = (argument.child_by_field_name("name") for argument in given if keyword(source, argument) == name)
    return [node for node in found if node is not None]


def _place(node: Node, rename: Rename) -> _RenameSite:
    return _RenameSite(node.start_byte, f"{rename.old}: {rename.new}" if node.type in SHORTHAND else rename.new)


def _is_rename(
    source: ParsedSource, names: BindingIndex, one: Occurrence, meant: list[Occurrence], rename: Rename
) -> bool:
    """Return whether the same thing has a new name now, rather than another thing being used in its place."""
    inside = meant[0].role.scope or names.scope(meant[0])
    if inside is None or names.visible(rename.new, one.node) is not None:
        return False
    builtin = source.language == "python" and rename.new in _BUILTINS
    for other in names.occurrences(rename.new):  # the new name is used already where the old one is known
        near = inside.node.start_byte <= other.node.start_byte < inside.node.end_byte
        if near and (names.scope(other) or rename.new in _BUILTINS):
            return False
    bound = [other for other in meant if other.role.binds]
    if one.role.binds and not one.role.imported:
        return one == bound[0]  # a later assignment may begin something new
    if not one.role.binds and any(other.role.imported for other in bound):
        return False  # more likely another name of the imported file is meant
    if one.node.type in SHORTHAND or builtin:
        return False
    return SequenceMatcher(None, rename.old.lower(), rename.new.lower()).ratio() >= MIN_SIMILARITY


def _dangling_rename(after: ParsedSource, one: Occurrence, rename: Rename) -> RenameRun | None:
    """Return a rename of the uses of a name that is no longer bound, where the new name is bound."""
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
    return RenameRun(rename, [_place(other.node, rename) for other in same], {}, after.text)
