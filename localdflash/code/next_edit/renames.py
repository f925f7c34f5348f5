"""A name was changed at one place: the next place that means the same thing."""

import builtins
from dataclasses import dataclass
from difflib import SequenceMatcher
from keyword import kwlist, softkwlist
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.bindings import Names, Occurrence
from localdflash.code.next_edit.javascript_names import SHORTHAND
from localdflash.code.next_edit.scopes import Scope
from localdflash.code.next_edit.signatures import calls, keyword, name_of
from localdflash.code.next_edit.source import Change, Proposal, Source

ALIKE = 0.5  # of two names, as difflib counts: a use that changes into another kind of name is no rename
_BUILTINS = {*dir(builtins), *kwlist, *softkwlist}


class Rename(NamedTuple):
    """One name instead of another."""

    old: str
    new: str


class _Place(NamedTuple):
    """A place of the old name, in the text that a run began with, and what it has to become."""

    start: int
    text: str


@dataclass
class RenameRun:
    """A rename under way. What the name meant is decided once, when it begins: later, half of its places have another.

    `done` holds by how much each changed place has grown; `text` is the one that all of this leads to.
    """

    rename: Rename
    places: list[_Place]
    done: dict[int, int]
    text: str
    offered: tuple[_Place, str] | None = None  # and the text once it is accepted

    def follow(self, before: Source, after: Source, change: Change) -> bool:
        """Take note of a change, if it is the rename of one more place."""
        place = self._changed(before, after, change) if before.text == self.text else None
        if place is None or place.start in self.done:
            return False
        self.done[place.start] = len(after.bytes) - len(before.bytes)
        self.text, self.offered = after.text, None
        return True

    def proposal(self, after: Source, change: Change) -> Proposal | None:
        """The next place behind a change, or else the first of all."""
        left = [(self._now(place.start), place) for place in self.places if place.start not in self.done]
        following = [pair for pair in left if pair[0] > change.start]
        if not left:
            return None
        start, place = (following or left)[0]
        found = Proposal(start, start + len(self.rename.old.encode()), place.text, self.rename)
        self.offered = place, after.applied(found)
        return found

    def _changed(self, before: Source, after: Source, change: Change) -> _Place | None:
        if self.offered and after.text == self.offered[1]:
            return self.offered[0]
        if rename_of(before, after, change) != self.rename:
            return None
        start = before.word(change.start, change.old_end)[0]
        return next((place for place in self.places if self._now(place.start) == start), None)

    def _now(self, start: int) -> int:
        return start + sum(growth for done, growth in self.done.items() if done < start)


@dataclass(frozen=True)
class _Edited:
    """The word that changed, in both texts."""

    before: Source
    after: Source
    change: Change
    place: Node
    rename: Rename


def rename_of(before: Source, after: Source, change: Change) -> Rename | None:
    """The words, if just one word has become another."""
    (old_start, old_end), (start, end) = _words(before, after, change)
    if not before.is_word(old_start, old_end) or not after.is_word(start, end):
        return None
    return Rename(before.bytes[old_start:old_end].decode("utf-8", "replace"), after.bytes[start:end].decode())


def begun_rename(before: Source, after: Source, change: Change) -> RenameRun | None:
    """The rename that a change begins, if a name was changed and its other places are known."""
    rename = rename_of(before, after, change)
    place = before.leaf(*_words(before, after, change)[0])
    if rename is None or place is None:
        return None
    return _begun(_Edited(before, after, change, place, rename))


def _words(before: Source, after: Source, change: Change) -> tuple[tuple[int, int], tuple[int, int]]:
    return before.word(change.start, change.old_end), after.word(change.start, change.new_end)


def _begun(edited: _Edited) -> RenameRun | None:
    names, (old, new) = Names(edited.before), edited.rename
    one = names.at(edited.place)
    if one is None or names.is_unclear(old) or names.is_unclear(new):
        return None
    scope = names.scope(one)
    if scope is None:
        return _begun_dangling(edited, one)
    meant = names.meant(old, scope)
    if not _is_rename(edited, names, one, meant):
        return None
    nodes = [use.node for use in meant] + _keywords(edited.before, names, old, scope)
    places = sorted(_place(node, edited.rename) for node in nodes)
    return RenameRun(edited.rename, places, {edited.place.start_byte: edited.change.growth}, edited.after.text)


def _keywords(source: Source, names: Names, name: str, scope: Scope) -> list[Node]:
    """Where calls name a parameter of Python that a function has."""
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


def _place(node: Node, rename: Rename) -> _Place:
    return _Place(node.start_byte, f"{rename.old}: {rename.new}" if node.type in SHORTHAND else rename.new)


def _is_rename(edited: _Edited, names: Names, one: Occurrence, meant: list[Occurrence]) -> bool:
    """Whether the thing has a new name, rather than another thing being used in its place."""
    old, new = edited.rename
    inside = meant[0].role.scope or names.scope(meant[0])
    if inside is None or _is_taken(edited, names, inside.node):
        return False
    bound = [other for other in meant if other.role.binds]
    if one.role.binds and not one.role.imported:
        return one == bound[0]  # a later assignment may as well begin something new
    if not one.role.binds and any(other.role.imported for other in bound):
        return False  # another file knows it by its name: more likely another thing of that file is meant
    if one.node.type in SHORTHAND or (edited.before.language == "python" and new in _BUILTINS):
        return False
    return SequenceMatcher(None, old.lower(), new.lower()).ratio() >= ALIKE


def _is_taken(edited: _Edited, names: Names, inside: Node) -> bool:
    """Whether the new name means something already, where the old one is known."""
    for other in names.occurrences(edited.rename.new):
        near = inside.start_byte <= other.node.start_byte < inside.end_byte
        if near and (names.scope(other) or edited.rename.new in _BUILTINS):
            return True
    return names.visible(edited.rename.new, edited.place) is not None


def _begun_dangling(edited: _Edited, one: Occurrence) -> RenameRun | None:
    """The uses of a name that nothing binds any more, where the new name is bound."""
    names, (old, new) = Names(edited.after), edited.rename
    fresh = edited.after.leaf(edited.place.start_byte, edited.place.start_byte + len(new.encode()))
    known = names.at(fresh) if fresh is not None else None
    if known is None or one.role.binds or (edited.before.language == "python" and old in _BUILTINS):
        return None
    scope = names.scope(known)
    if scope is None or b"import *" in edited.after.bytes:
        return None
    others = [other for other in names.occurrences(old) if not other.role.binds and names.scope(other) is None]
    if known.role.scope is not None:  # a member
        same = [other for other in others if other.role.scope == scope]
    else:
        plain = [other for other in others if other.role.scope is None]
        same = [other for other in plain if names.visible(new, other.node) == scope]
    return RenameRun(edited.rename, [_place(other.node, edited.rename) for other in same], {}, edited.after.text)
