"""A name was changed at one place: the next place that means the same thing."""

import builtins
import keyword
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from tree_sitter import Node

from localdflash.workspace.next_edit.javascript_names import SHORTHAND
from localdflash.workspace.next_edit.names import Names, Occurrence
from localdflash.workspace.next_edit.source import Change, Proposal, Source

ALIKE = 0.5  # of two names, as difflib counts: a use that changes into another kind of name is no rename
_BUILTINS = {*dir(builtins), *keyword.kwlist, *keyword.softkwlist}


class Rename(NamedTuple):
    """One name instead of another."""

    old: str
    new: str


@dataclass(frozen=True)
class _Edited:
    """The word that changed, in both texts, and whether the same was done just before."""

    before: Source
    after: Source
    change: Change
    place: Node
    rename: Rename
    again: bool


def rename_of(before: Source, after: Source, change: Change) -> Rename | None:
    """The words, if just one word has become another."""
    (old_start, old_end), (start, end) = _words(before, after, change)
    if not before.is_word(old_start, old_end) or not after.is_word(start, end):
        return None
    return Rename(before.bytes[old_start:old_end].decode("utf-8", "replace"), after.bytes[start:end].decode())


def next_rename(before: Source, after: Source, change: Change, *, again: bool) -> Proposal | None:
    """The next place of a name that was changed. `again`: the edit before this one made the same of another place."""
    rename = rename_of(before, after, change)
    place = before.leaf(*_words(before, after, change)[0])
    if rename is None or place is None:
        return None
    return _next(_Edited(before, after, change, place, rename, again))


def _words(before: Source, after: Source, change: Change) -> tuple[tuple[int, int], tuple[int, int]]:
    return before.word(change.start, change.old_end), after.word(change.start, change.new_end)


def _next(edited: _Edited) -> Proposal | None:
    names, (old, new) = Names(edited.before), edited.rename
    one = names.at(edited.place)
    if one is None or names.is_unclear(old) or names.is_unclear(new):
        return None
    scope = names.scope(one)
    if scope is None:
        return _next_dangling(edited, one)
    meant = names.meant(old, scope)
    if not edited.again and not _is_rename(edited, names, one, meant):
        return None
    return _proposal(edited, [(edited.change.moved(use.node.start_byte), use.node) for use in meant if use != one])


def _is_rename(edited: _Edited, names: Names, one: Occurrence, meant: list[Occurrence]) -> bool:
    """Whether the thing has a new name, rather than another thing being used in its place."""
    old, new = edited.rename
    inside = meant[0].role.scope or names.scope(meant[0])
    if inside is None or _is_taken(edited, names, inside.node):
        return False
    bound = [other for other in meant if other.role.binds]
    if one.role.binds and not one.role.imported:
        return one == bound[0]  # a later assignment may as well begin something new
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


def _next_dangling(edited: _Edited, one: Occurrence) -> Proposal | None:
    """The next use of a name that nothing binds any more, where the new name is bound."""
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
    return _proposal(edited, [(other.node.start_byte, other.node) for other in same])


def _proposal(edited: _Edited, places: list[tuple[int, Node]]) -> Proposal | None:
    """The first place behind the change, or else the first of all."""
    old, new = edited.rename
    following = [place for place in places if place[0] > edited.change.start]
    if not places:
        return None
    start, node = (following or places)[0]
    text = f"{old}: {new}" if node.type in SHORTHAND else new
    return Proposal(start, start + len(old.encode()), text, edited.rename)
