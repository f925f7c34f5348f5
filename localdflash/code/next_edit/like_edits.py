"""Like edits: two edits of one shape, or one of a text that the file has often; propose the next node of that shape.

The shape of `row["a"]` -> `row.get("a")` and `row["b"]` -> `row.get("b")` is `row["*"]` -> `row.get("*")`: any text may
stand where the edits differ. Both edits replaced nodes of one kind, within one line.
"""

import builtins
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice, takewhile
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit.repetitions import edited_node
from localdflash.code.next_edit.source import Change, EditProposal, ParsedSource, is_field, outward

MAX_NODE_CHARS = 160
MAX_LEVELS = 5  # nodes around a change that are compared
MAX_TRIED = 4  # nodes whose new text is parsed
MIN_MATCHES = 3  # of the old text in the file, for one edit to be enough
MIN_STRING_CHARS = 4
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|_+|\s+|.", re.DOTALL)
_STRINGS = {"string_content", "string_fragment"}
_SUBSCRIPTS = {"subscript", "subscript_expression"}
_ANNOTATIONS = {"type", "type_annotation"}
_UNKNOWN_TYPES = {"any", "Any"}
_BUILTINS = {*dir(builtins)} - {"print"}


class _NodeEdit(NamedTuple):
    """Node around a change, with its text before and after."""

    node: Node
    old: str
    new: str


class EditShape(NamedTuple):
    """Repeatable edit: the role of the node, the pattern of its old text, the template of the new, and its pattern."""

    role: tuple[str, ...]
    old: str
    new: str
    done: str
    literal: str  # longest text that every old text has


def next_like_edit(
    before: ParsedSource, after: ParsedSource, change: Change, earlier: tuple[ParsedSource, Change] | None
) -> EditProposal | None:
    """Return where the change can be made again. `earlier`: the text before the previous edit, and that edit."""
    edits = list(_levels(before, after, change))
    shape = _common_shape(list(_levels(earlier[0], before, earlier[1])), edits) if earlier else None
    shape = shape or next((_constant(one, _role(one.node)[:3]) for one in edits if _is_telling(before, one)), None)
    if shape is None:
        return None
    nodes = [node for node in _find(after, shape) if not change.start <= node.start_byte <= change.new_end]
    for node in sorted(nodes, key=lambda node: (node.start_byte < change.start, node.start_byte))[:MAX_TRIED]:
        found = re.fullmatch(shape.old, after.cut(node))
        proposal = EditProposal(node.start_byte, node.end_byte, found.expand(shape.new) if found else "", shape)
        if ParsedSource(after.language, after.applied(proposal)).sound:
            return proposal
    return None


def _levels(before: ParsedSource, after: ParsedSource, change: Change) -> Iterator[_NodeEdit]:
    """Yield the nodes around a change that lie on one line, smallest first."""
    node = edited_node(before, change)
    for _ in range(MAX_LEVELS):
        if node is None or node.parent is None or node.end_byte - node.start_byte > MAX_NODE_CHARS:
            return
        new = after.bytes[node.start_byte : node.end_byte + change.growth].decode("utf-8", "replace")
        if node.start_point.row != node.end_point.row or "\n" in new:
            return
        if node.is_named:
            yield _NodeEdit(node, before.cut(node), new)
        node = node.parent


def _role(node: Node) -> tuple[str, ...]:
    """Return the type of a node; of a name also its fields and the types around it, through annotations."""
    role = [node.type]
    is_name = node.type in _ANNOTATIONS or (not node.child_count and node.type not in _STRINGS)
    if is_name and (parent := node.parent) is not None:
        number = parent.children.index(node)
        role += [parent.field_name_for_child(number) or "", parent.type]
        while parent is not None and parent.type in _ANNOTATIONS and (outer := parent.parent) is not None:
            role += [outer.field_name_for_child(outer.children.index(parent)) or "", outer.type]
            parent = outer
    return tuple(role)


def _common_shape(ones: Sequence[_NodeEdit], others: Sequence[_NodeEdit]) -> EditShape | None:
    """Return the shape of two edits: of the largest node that changed alike, else of the smallest that is similar."""
    alike, similar = None, []
    for one in ones:
        for other in (other for other in others if other.node.type == one.node.type):
            role = _shared(_role(one.node), _role(other.node))
            if len(role) < min(3, len(_role(one.node))):
                continue
            if one[1:] == other[1:] and re.search(r"\w", one.old):
                alike = _constant(one, role), one.node
            elif shape := _unified(one, other, role) or _of_strings(one, other, role):
                similar.append(shape)
    if alike is None:
        return similar[0] if similar else None
    shape, node = alike
    if node.type in _ANNOTATIONS or _is_annotation(node):  # the end of the names may count, too: `userId: number`
        return next((one for one in similar if _count_letters(one.old) > _count_letters(shape.old)), shape)
    return shape


def _constant(one: _NodeEdit, role: tuple[str, ...]) -> EditShape:
    return EditShape(role, re.escape(one.old), one.new.replace("\\", r"\\"), re.escape(one.new), one.old)


def _unified(one: _NodeEdit, other: _NodeEdit, role: tuple[str, ...]) -> EditShape | None:
    """Return the shape of two edits that differ in texts that both keep."""
    holes: list[tuple[str, str]] = []
    old, literals = "", [""]
    for text, differing in _blocks(one.old, other.old):
        if differing is None:
            old, literals[-1] = old + re.escape(text), literals[-1] + text
        elif text and differing:
            holes.append((text, differing))
            old += r"(\w+)" if re.fullmatch(r"\w+ \w+", f"{text} {differing}") else "(.+?)"
            literals.append("")
        else:
            return None
    new = done = ""
    for text, differing in _blocks(one.new, other.new):
        if differing is None:
            new, done = new + text.replace("\\", r"\\"), done + re.escape(text)
        elif (text, differing) in holes:
            new, done = new + rf"\g<{holes.index((text, differing)) + 1}>", done + "(.+?)"
        else:
            return None
    literal = max(literals, key=len)
    is_special = any(re.search(r"\w{2}", text) for text in literals) or role[0] in _SUBSCRIPTS
    return EditShape(role, old, new, done, literal) if literal.strip() and is_special else None


def _of_strings(one: _NodeEdit, other: _NodeEdit, role: tuple[str, ...]) -> EditShape | None:
    """Return the shape of the same change after the same beginning of two strings."""
    heads = {"".join(_shared(each.old, each.new)) for each in (one, other)}
    head = heads.pop()
    added = [each.new.removesuffix(each.old[len(head) :]) for each in (one, other)]
    if heads or not head.strip() or role[0] not in _STRINGS or added[0] != added[1] or added[0] == one.new:
        return None
    old, new = re.escape(head), re.escape(added[0])
    return EditShape(role, f"{old}(.+)", added[0].replace("\\", r"\\") + r"\g<1>", f"{new}.+", head)


def _shared(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """Return the beginning that two sequences share."""
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _blocks(one: str, other: str) -> Iterator[tuple[str, str | None]]:
    """Yield the texts of two texts that are equal (with None) or differ, in order."""
    ones, others = _WORDS.findall(one), _WORDS.findall(other)
    for kind, start, end, from_, to in SequenceMatcher(None, ones, others, autojunk=False).get_opcodes():
        yield "".join(ones[start:end]), None if kind == "equal" else "".join(others[from_:to])


def _count_letters(pattern: str) -> int:
    return len(re.sub(r"\\.|\W", "", pattern))


def _is_annotation(node: Node) -> bool:
    return node.parent is not None and node.parent.type in _ANNOTATIONS


def _is_telling(before: ParsedSource, one: _NodeEdit) -> bool:
    """Return whether one edit is enough: of a called name, a string or the type `any` that the file has often."""
    node, parent = one.node, one.node.parent
    if parent is None or not one.new:
        return False
    if node.type in _STRINGS:
        holder = parent.parent
        is_key = holder is not None and (
            holder.type in _SUBSCRIPTS or (holder.type == "pair" and is_field(parent, "key"))
        )
        telling = len(one.old) >= MIN_STRING_CHARS and not is_key
    elif is_field(node, "function"):
        telling = one.old not in _BUILTINS and bool(re.fullmatch(r"[\w.$]+", one.old + one.new))
    else:
        telling = node.type in _SUBSCRIPTS or (one.old in _UNKNOWN_TYPES and _is_annotation(node))
    return telling and len(list(_find(before, _constant(one, _role(node)[:3])))) >= MIN_MATCHES


def _is_done(source: ParsedSource, node: Node, shape: EditShape) -> bool:
    """Return whether a node, or one around it, has the new text already."""
    for one in (node, *(outer for _, outer in islice(outward(node), 2))):
        found = re.match(shape.done, source.cut(one))
        if found and one.start_byte + len(found[0].encode()) >= node.end_byte:
            return True
    return False


def _find(source: ParsedSource, shape: EditShape) -> Iterator[Node]:
    """Yield the nodes of a shape that do not have its new text, in the order of the file."""
    last = -1
    for found in re.finditer(re.escape(shape.literal.encode()), source.bytes):
        node = source.root.descendant_for_byte_range(found.start(), found.end())
        for _ in range(MAX_LEVELS):
            if node is None or node.start_point.row != node.end_point.row:
                break
            text = source.cut(node)
            if (
                node.start_byte > last
                and _role(node)[: len(shape.role)] == shape.role
                and re.fullmatch(shape.old, text)
            ):
                last = node.start_byte
                if not _is_done(source, node, shape):
                    yield node
                break
            node = node.parent
