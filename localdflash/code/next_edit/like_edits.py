"""Like edits: after two edits of one *shape*, or one edit of a frequent text, edit the next node of that shape.

The shape of `row["a"]` -> `row.get("a")` and `row["b"]` -> `row.get("b")` is `row["*"]` -> `row.get("*")`: where the
edits differ, it matches any text. Both edits must have replaced nodes of one type, within one line.
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

MAX_NODE_BYTES = 160  # larger nodes are not compared
MAX_LEVELS = 5  # nested nodes around a change that are compared
MAX_TRIED = 4  # nodes where the edit is tried; each costs a parse
MIN_MATCHES = 3  # nodes with the old text in the file, for one edit to be enough
MIN_STRING_CHARS = 4  # one edit of a shorter string is not enough for a proposal
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
    """Repeatable edit of the nodes with one `_context`."""

    context: tuple[str, ...]
    old: str  # regular expression of the old text
    new: str  # template of the new text, for `re.Match.expand`
    done: str  # regular expression of the new text
    literal: str  # longest text that all old texts contain


def next_like_edit(
    before: ParsedSource, after: ParsedSource, change: Change, earlier: tuple[ParsedSource, Change] | None
) -> EditProposal | None:
    """Return the edit of the next node of the same shape, or None. `earlier`: previous edit and the text before it."""
    edits = list(_edited_nodes(before, after, change))
    shape = _common_shape(list(_edited_nodes(earlier[0], before, earlier[1])), edits) if earlier else None
    single_edit_shapes = (_literal_shape(one, _context(one.node)[:3]) for one in edits if _is_enough(before, one))
    if (shape := shape or next(single_edit_shapes, None)) is None:
        return None
    nodes = [node for node in _find(after, shape) if not change.start <= node.start_byte <= change.new_end]
    for node in sorted(nodes, key=lambda node: (node.start_byte < change.start, node.start_byte))[:MAX_TRIED]:
        match = re.fullmatch(shape.old, after.text_of(node))
        proposal = EditProposal(node.start_byte, node.end_byte, match.expand(shape.new) if match else "", shape)
        if ParsedSource(after.language, after.apply(proposal)).is_valid:
            return proposal
    return None


def _edited_nodes(before: ParsedSource, after: ParsedSource, change: Change) -> Iterator[_NodeEdit]:
    """Yield the named nodes around a change that are on one line, smallest first."""
    node = edited_node(before, change)
    for _ in range(MAX_LEVELS):
        if node is None or node.parent is None or not _is_comparable(node):
            return
        new = after.bytes[node.start_byte : node.end_byte + change.growth].decode("utf-8", "replace")
        if "\n" in new:
            return
        if node.is_named:
            yield _NodeEdit(node, before.text_of(node), new)
        node = node.parent


def _is_comparable(node: Node) -> bool:
    """Return whether a node is on one line, and small enough for regular expressions with several `.+?`."""
    return node.start_point.row == node.end_point.row and node.end_byte - node.start_byte <= MAX_NODE_BYTES


def _context(node: Node) -> tuple[str, ...]:
    """Return the type of a node; for a name also its field and parent's type, up through annotations."""
    context = [node.type]
    is_name = node.type in _ANNOTATIONS or (not node.child_count and node.type not in _STRINGS)
    if is_name and (parent := node.parent) is not None:
        number = parent.children.index(node)
        context += [parent.field_name_for_child(number) or "", parent.type]
        while parent is not None and parent.type in _ANNOTATIONS and (outer := parent.parent) is not None:
            context += [outer.field_name_for_child(outer.children.index(parent)) or "", outer.type]
            parent = outer
    return tuple(context)


def _common_shape(earlier_edits: Sequence[_NodeEdit], edits: Sequence[_NodeEdit]) -> EditShape | None:
    """Return the shape of two edits: of the largest node with equal texts, else of the smallest similar node."""
    alike, similar = None, []
    for one in earlier_edits:
        for other in (other for other in edits if other.node.type == one.node.type):
            context = _common_start(_context(one.node), _context(other.node))
            if len(context) < min(3, len(_context(one.node))):
                continue
            if one[1:] == other[1:] and re.search(r"\w", one.old):
                alike = _literal_shape(one, context), one.node
            elif shape := _unify(one, other, context) or _string_start_shape(one, other, context):
                similar.append(shape)
    if alike is None:
        return similar[0] if similar else None
    shape, node = alike
    if node.type in _ANNOTATIONS or _is_annotation(node):  # prefer a more specific similar shape: `*Id: number`
        return next((one for one in similar if _count_letters(one.old) > _count_letters(shape.old)), shape)
    return shape


def _literal_shape(one: _NodeEdit, context: tuple[str, ...]) -> EditShape:
    return EditShape(context, re.escape(one.old), one.new.replace("\\", r"\\"), re.escape(one.new), one.old)


def _unify(one: _NodeEdit, other: _NodeEdit, context: tuple[str, ...]) -> EditShape | None:
    """Return the shape of two edits if both kept the texts in which their nodes differ, else None."""
    varying: list[tuple[str, str]] = []
    old, literals = "", [""]
    for text, differing in _aligned(one.old, other.old):
        if differing is None:
            old, literals[-1] = old + re.escape(text), literals[-1] + text
        elif text and differing:
            varying.append((text, differing))
            old += r"(\w+)" if re.fullmatch(r"\w+ \w+", f"{text} {differing}") else "(.+?)"
            literals.append("")
        else:
            return None
    new = done = ""
    for text, differing in _aligned(one.new, other.new):
        if differing is None:
            new, done = new + text.replace("\\", r"\\"), done + re.escape(text)
        elif (text, differing) in varying:
            new, done = new + rf"\g<{varying.index((text, differing)) + 1}>", done + "(.+?)"
        else:
            return None
    literal = max(literals, key=len)
    is_special = any(re.search(r"\w{2}", text) for text in literals) or context[0] in _SUBSCRIPTS
    return EditShape(context, old, new, done, literal) if literal.strip() and is_special else None


def _string_start_shape(one: _NodeEdit, other: _NodeEdit, context: tuple[str, ...]) -> EditShape | None:
    """Return the shape of two edits that made the same change at the same start of two strings, else None."""
    heads = {"".join(_common_start(each.old, each.new)) for each in (one, other)}
    head = heads.pop()
    added = [each.new.removesuffix(each.old[len(head) :]) for each in (one, other)]
    if heads or not head.strip() or context[0] not in _STRINGS or added[0] != added[1] or added[0] == one.new:
        return None
    old, new = re.escape(head), re.escape(added[0])
    return EditShape(context, f"{old}(.+)", added[0].replace("\\", r"\\") + r"\g<1>", f"{new}.+", head)


def _common_start(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """Return the common start of two sequences."""
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _aligned(one: str, other: str) -> Iterator[tuple[str, str | None]]:
    """Yield the aligned pieces of two texts in order: (piece, None) if equal, else (piece, other piece)."""
    ones, others = _WORDS.findall(one), _WORDS.findall(other)
    for kind, start, end, from_, to in SequenceMatcher(None, ones, others, autojunk=False).get_opcodes():
        yield "".join(ones[start:end]), None if kind == "equal" else "".join(others[from_:to])


def _count_letters(pattern: str) -> int:
    return len(re.sub(r"\\.|\W", "", pattern))


def _is_annotation(node: Node) -> bool:
    return node.parent is not None and node.parent.type in _ANNOTATIONS


def _is_enough(before: ParsedSource, one: _NodeEdit) -> bool:
    """Return whether one edit is enough for a proposal: of a callee, string, subscript or `any` that is frequent."""
    node, parent = one.node, one.node.parent
    if parent is None or not one.new:
        return False
    if node.type in _STRINGS:
        holder = parent.parent
        is_key = holder is not None and (
            holder.type in _SUBSCRIPTS or (holder.type == "pair" and is_field(parent, "key"))
        )
        is_special = len(one.old) >= MIN_STRING_CHARS and not is_key
    elif is_field(node, "function"):
        is_special = one.old not in _BUILTINS and bool(re.fullmatch(r"[\w.$]+", one.old + one.new))
    else:
        is_special = node.type in _SUBSCRIPTS or (one.old in _UNKNOWN_TYPES and _is_annotation(node))
    return is_special and len(list(_find(before, _literal_shape(one, _context(node)[:3])))) >= MIN_MATCHES


def _is_done(source: ParsedSource, node: Node, shape: EditShape) -> bool:
    """Return whether a node, or one of its two ancestors, already has the new text."""
    for one in (node, *(outer for _, outer in islice(outward(node), 2))):
        match = re.match(shape.done, source.text_of(one)[: 2 * MAX_NODE_BYTES])
        if match and one.start_byte + len(match[0].encode()) >= node.end_byte:
            return True
    return False


def _find(source: ParsedSource, shape: EditShape) -> Iterator[Node]:
    """Yield the nodes that match a shape and do not have its new text yet, in file order."""
    last = -1
    for match in re.finditer(re.escape(shape.literal.encode()), source.bytes):
        node = source.root.descendant_for_byte_range(match.start(), match.end())
        for _ in range(MAX_LEVELS):
            if node is None or not _is_comparable(node):
                break
            text = source.text_of(node)
            if (
                node.start_byte > last
                and _context(node)[: len(shape.context)] == shape.context
                and re.fullmatch(shape.old, text)
            ):
                last = node.start_byte
                if not _is_done(source, node, shape):
                    yield node
                break
            node = node.parent
