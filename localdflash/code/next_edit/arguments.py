"""A parameter or an argument was added or removed: the next call that no longer fits.

Only for functions that are defined once in the same file, and only with text whose meaning is the same there.

Measured on 38 signature edits of real commits (Textual, Black, Werkzeug; each changed calls in the same file, too): 10
of them get a proposal, and 9 of the 12 proposals are what the commit did.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.bindings import Names
from localdflash.code.next_edit.signatures import (
    ARGUMENTS,
    PARAMETERS,
    Call,
    Function,
    call_with,
    called_function,
    calls,
    function_with,
    items,
    keyword,
    name_of,
)
from localdflash.code.next_edit.source import Change, Proposal, Source


class Listed(NamedTuple):
    """One entry more, or one less, in a list of parameters or arguments of a function."""

    function: str
    number: int
    text: str
    added: bool


@dataclass(frozen=True)
class _Edited:
    """The list that changed, and the entry that came (a node of `after`) or went (a node of `before`)."""

    before: Source
    after: Source
    old: Node
    new: Node
    index: int
    entry: Node
    added: bool

    @property
    def text(self) -> str:
        """The entry."""
        return (self.after if self.added else self.before).cut(self.entry)


def next_argument(before: Source, after: Source, change: Change) -> Proposal | None:
    """Where the change has to be made next."""
    old, new = _list(before, change.start, change.old_end), _list(after, change.start, change.new_end)
    if old is None or new is None or (old.start_byte, old.type) != (new.start_byte, new.type):
        return None
    edited = _edited(before, after, old, new)
    if edited is None:
        return None
    return _after_definition(edited) if new.type in PARAMETERS else _after_call(edited)


def _list(source: Source, start: int, end: int) -> Node | None:
    """The innermost list of parameters or arguments around these bytes."""
    node = source.root.descendant_for_byte_range(start, end)
    while node is not None:
        if node.type in PARAMETERS | ARGUMENTS and node.start_byte < start and end < node.end_byte:
            return node
        node = node.parent
    return None


def _edited(before: Source, after: Source, old: Node, new: Node) -> _Edited | None:
    """What came or went, if it is one entry and nothing else."""
    gone, come = items(old), items(new)
    if abs(len(gone) - len(come)) != 1:
        return None
    added = len(come) > len(gone)
    longer, shorter = (come, gone) if added else (gone, come)
    texts = [(after if added else before).cut(one) for one in longer]
    fewer = [(before if added else after).cut(one) for one in shorter]
    index = next((at for at, text in enumerate(fewer) if text != texts[at]), len(fewer))
    if texts[:index] + texts[index + 1 :] != fewer:
        return None
    return _Edited(before, after, old, new, index, longer[index], added)


def _after_definition(edited: _Edited) -> Proposal | None:
    """The next call that has to follow a changed definition."""
    after, names = edited.after, Names(edited.after)
    named = name_of(after, edited.new)
    name = names.at(named) if named is not None else None
    scope = names.scope(name) if name else None
    if name is None or scope is None or len(names.bindings(after.cut(name.node), scope)) != 1:
        return None
    member = scope.members or (name.node.parent is not None and "class" in name.node.parent.type)
    was = function_with(edited.before, edited.old, as_member=member)
    now = function_with(after, edited.new, as_member=member)
    if was is None or now is None:
        return None
    changed = (now if edited.added else was).parameters[edited.index]
    if changed.rest or (edited.added and changed.optional):
        return None
    for call in _onward(calls(after, names, name), edited.new):
        if not was.fits(call.positional, call.keywords) or now.fits(call.positional, call.keywords):
            continue
        found = _missing(after, names, call, now, edited) if edited.added else _surplus(after, call, was, edited)
        if found:
            return found
    return None


def _missing(after: Source, names: Names, call: Call, now: Function, edited: _Edited) -> Proposal | None:
    """The new parameter's name as an argument, where something is called so."""
    name, position = now.parameters[edited.index].name, edited.index - now.hidden
    if not name or names.visible(name, call.brackets) is None:
        return None
    named_only = any(one.rest for one in now.parameters[: edited.index])
    if named_only or position > call.positional:
        position, text = len(call.items), f"{name}={name}"
    else:
        text = name
    if "=" in text and after.language != "python":
        return None
    return _inserted(call.brackets, call.items, position, text, _pattern(after, call, edited, text))


def _surplus(after: Source, call: Call, was: Function, edited: _Edited) -> Proposal | None:
    """The argument that a removed parameter took."""
    for at, argument in enumerate(call.items):
        if was.index_of(at, keyword(after, argument)) == edited.index:
            return _removed(call.brackets, call.items, at, _pattern(after, call, edited, ""))
    return None


def _after_call(edited: _Edited) -> Proposal | None:
    """The next call that has to follow a changed call."""
    after, before = edited.after, edited.before
    names, names_before = Names(after), Names(before)
    call, old = call_with(after, names, edited.new), call_with(before, names_before, edited.old)
    function = called_function(after, names, call) if call else None
    if call is None or old is None or function is None:
        return None
    fits, fitted = (function.fits(one.positional, one.keywords) for one in (call, old))
    if fits and not fitted:
        return _same_of_next_call(edited, names, call, function)
    return None


def _same_of_next_call(edited: _Edited, names: Names, changed: Call, function: Function) -> Proposal | None:
    """The next call that does not fit, and would with the same change."""
    after = edited.after
    named = keyword(after if edited.added else edited.before, edited.entry)
    for call in _onward(calls(after, names, changed.name), edited.new):
        if function.fits(call.positional, call.keywords):
            continue
        if edited.added and _means_the_same(edited, names, call) and named not in (call.keywords if named else ()):
            more = (call.positional + 1, call.keywords) if not named else (call.positional, (*call.keywords, named))
            at = len(call.items) if named else edited.index
            if at <= (len(call.items) if named else call.positional) and function.fits(*more):
                return _inserted(call.brackets, call.items, at, edited.text, _pattern(after, call, edited, edited.text))
        if not edited.added:
            place = _place(after, call, edited.index, named)
            if place is not None:
                return _removed(call.brackets, call.items, place, _pattern(after, call, edited, ""))
    return None


def _place(after: Source, call: Call, index: int, named: str) -> int | None:
    """Where the argument that was removed elsewhere stands in a call."""
    if named:
        return next((at for at, one in enumerate(call.items) if keyword(after, one) == named), None)
    return index if index < call.positional else None


def _means_the_same(edited: _Edited, names: Names, call: Call) -> bool:
    """Whether the names in an argument mean in another call what they mean in this one."""
    for leaf in _leaves(edited.entry):
        one = names.at(leaf)
        if "identifier" not in leaf.type or one is None:
            continue
        scope = names.scope(one)
        if one.role.scope is not None or scope is None or names.visible(edited.after.cut(leaf), call.brackets) != scope:
            return False
    return True


def _onward(found: list[Call], here: Node) -> Iterator[Call]:
    """Calls from a place on, and then those before it."""
    yield from (call for call in found if call.brackets.start_byte > here.start_byte)
    yield from (call for call in found if call.brackets.start_byte < here.start_byte)


def _leaves(node: Node) -> Iterator[Node]:
    if node.child_count == 0:
        yield node
    for child in node.children:
        yield from _leaves(child)


def _pattern(after: Source, call: Call, edited: _Edited, text: str) -> Listed:
    return Listed(after.cut(call.name.node), edited.index, text, edited.added)


def _inserted(listed: Node, entries: list[Node], at: int, text: str, pattern: Listed) -> Proposal:
    """An entry more in a list."""
    if not entries:
        return Proposal(listed.start_byte + 1, listed.start_byte + 1, text, pattern)
    if at < len(entries):
        return Proposal(entries[at].start_byte, entries[at].start_byte, f"{text}, ", pattern)
    return Proposal(entries[-1].end_byte, entries[-1].end_byte, f", {text}", pattern)


def _removed(listed: Node, entries: list[Node], at: int, pattern: Listed) -> Proposal | None:
    """An entry less in a list; None if the list has it on a line of its own."""
    first, last = entries[max(at - 1, 0)], entries[min(at + 1, len(entries) - 1)]
    if first.start_point.row != last.end_point.row or listed.start_point.row != entries[at].end_point.row:
        return None
    if at:
        return Proposal(entries[at - 1].end_byte, entries[at].end_byte, "", pattern)
    end = entries[1].start_byte if len(entries) > 1 else entries[0].end_byte
    return Proposal(entries[0].start_byte, end, "", pattern)
