"""Put a code block into a file: as its whole new text, or by replacing definitions of the same names."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from localdflash.base.errors import UsageError
from localdflash.chat.file_text import Splice, diff_lines

if TYPE_CHECKING:
    from tree_sitter import Node

_COMMENT = r"^\s*(?:#|//|--|;|%|/\*+|<!--|\{/\*)[\s(\[]*"
_OMITTED = r"(?:rest|remaining|remainder|existing|unchanged|other|previous|omitted|same)"
_ELISION = re.compile(
    rf"{_COMMENT}(?:\.{{3}}|…)|{_COMMENT}(?=.*\b{_OMITTED}\b).*(?:\.{{3}}|…)\W*$|"
    rf"{_COMMENT}(?:the )?{_OMITTED}\b.*\b(?:code|file|contents?|methods?|functions?|imports?|unchanged|same|here)\b|"
    r"^\s*[\[(<]?(?:…|\.{3})[\])>]?\s*$",
    re.IGNORECASE,
)
_ATTRIBUTES = {"attribute_item", "decorator"}
_METHOD = re.compile(r"\b(?:self|cls)\b|@staticmethod\b")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_WRAPPERS = {"decorated_definition", "export_statement", "template_declaration", "ambient_declaration"}
_HOLDERS = {
    *("block", "class_body", "declaration_list", "statement_block", "field_declaration_list", "interface_body"),
    *("enum_body", "enum_body_declarations", "impl_item", "program", "module", "source_file", "translation_unit"),
    *("chunk", "namespace_definition", "mod_item", "linkage_specification", "preproc_ifdef", "preproc_if"),
}


class _DefinitionLines(NamedTuple):
    """Definition with its decorators, as lines; `lead` is where the comments right above it begin."""

    name: str
    kind: str
    lead: int
    start: int
    stop: int
    top: bool
    alone: bool  # nothing else stands on its lines


def find_rewrite(path: str, old: Sequence[str], code: Sequence[str]) -> list[Splice]:
    """Return the splices that put the code into a file; UsageError if they are ambiguous."""
    if sum(1 for line in code if _FENCE.match(line)) % 2:
        raise UsageError("has a fence within the fence: where it ends cannot be told")
    elided = _find_elision(code, old, path)
    if not "".join(old).strip():
        if elided:
            raise UsageError(_explain_partial(elided))
        return [Splice(0, len(old), code)]
    from localdflash.text.syntax import language_of

    language = language_of(path)
    if not language:
        if elided or not _resembles(old, code):
            raise UsageError(_explain_partial(elided))
        return diff_lines(old, code)
    before, after = _Outline(path, language, old), _Outline(path, language, code)
    if not elided and after.covers(before):
        return diff_lines(old, code)
    return _replace_definitions(before, after, elided)


def _find_elision(code: Sequence[str], old: Sequence[str], path: str) -> str:
    """Return the line with which code says that it omits something, or ""; a line of the file does not count."""
    there = {line.strip() for line in old}
    if path.endswith((".py", ".pyi")):
        there.add("...")  # a body
    candidates = (line.strip() for line in code if len(line) <= 200 and _ELISION.match(line))
    return next((line for line in candidates if line not in there), "")


def _explain_partial(elided: str) -> str:
    if elided:
        return f"leaves parts out: {elided[:60]!r}"
    return "does not say where it belongs: it is not the whole file"


def _resembles(old: Sequence[str], code: Sequence[str]) -> bool:
    """Return whether a block may be the whole file, without a grammar: same beginning, at least half of the lines."""
    there, here = ([line.strip() for line in lines if line.strip()] for lines in (old, code))
    kept = (Counter(there) & Counter(here)).total()
    return bool(here) and here[0] == there[0] and 2 * kept >= len(there)


class _Outline:
    """Definitions of a text, and its other top-level statements."""

    def __init__(self, path: str, language: str, lines: Sequence[str]) -> None:
        from localdflash.code.context.definitions import find_definitions
        from localdflash.text.syntax import parse

        text = "\n".join(lines)
        tree = parse(language, text)
        assert tree is not None
        self.lines = lines
        self.broken = tree.root_node.has_error
        found = find_definitions(path, language, text)
        units = (_make_definition(tree.root_node, lines, each.name, each.kind, each.line) for each in found)
        self.units = list(dict.fromkeys(units))
        within = {line for unit in self.units for line in range(unit.lead, unit.stop)}
        self.others = [
            node.text.decode("utf-8", "replace").split("\n")[0].strip()
            for node in tree.root_node.named_children
            if node.start_point.row not in within and "comment" not in node.type and node.text
        ]

    def names(self) -> set[tuple[str, str]]:
        """Return the names of all definitions, each with its enclosing definition."""
        tops = [unit for unit in self.units if unit.top]
        owners = {line: top.name for top in tops for line in range(top.start, top.stop)}
        return {("" if unit.top else owners.get(unit.start, ""), unit.name) for unit in self.units}

    def members(self, unit: _DefinitionLines) -> set[str]:
        """Return the names within a definition."""
        inside = (one for one in self.units if not one.top and unit.start <= one.start < unit.stop)
        return {one.name for one in inside if one != unit}

    def covers(self, old: "_Outline") -> bool:
        """Return whether this may be a whole new version of `old`."""
        kept = (Counter(old.others) & Counter(self.others)).total()
        return old.names() <= self.names() and 2 * kept >= len(old.others) and (not self.broken or old.broken)

    def named(self, name: str) -> list[_DefinitionLines]:
        """Return the definitions of a name; top-level ones only, if there are any."""
        found = [unit for unit in self.units if unit.name == name]
        return [unit for unit in found if unit.top] or found


def _replace_definitions(old: _Outline, new: _Outline, elided: str) -> list[Splice]:
    """Return a splice for each definition of the block, at the file's definition of that name."""
    tops = [unit for unit in new.units if unit.top]
    if elided or not tops:
        raise UsageError(_explain_partial(elided))
    if new.broken:
        raise UsageError("cannot be read as code: something in it is incomplete")
    if strange := next((text for text in new.others if text not in old.others), ""):
        raise UsageError(f"is not the whole file, and does not say where this belongs: {strange[:60]!r}")
    if twice := next((unit.name for unit in tops if len(new.named(unit.name)) > 1), ""):
        raise UsageError(f"defines {twice!r} twice")
    found = sorted({_replace_definition(old, new, unit) for unit in tops})
    if any(one.stop > other.start for one, other in pairwise(found)):
        raise UsageError("defines things that overlap in the file")
    return found


def _replace_definition(old: _Outline, new: _Outline, unit: _DefinitionLines) -> Splice:
    there = old.named(unit.name)
    if not there:
        raise UsageError(f"is not the whole file, and the file has no {unit.name!r} for it to replace")
    if len(there) > 1:
        raise UsageError(f"defines {unit.name!r}, which the file has {len(there)} times")
    place, code = there[0], new.lines[unit.lead : unit.stop]
    if not _is_same_kind(place, unit, code):
        raise UsageError(f"defines {unit.name!r} as another kind of thing than the file")
    if left_out := sorted(old.members(place) - new.members(unit)):
        raise UsageError(f"leaves out {left_out[0]!r}")
    decorator = old.lines[place.start].strip()
    if decorator.startswith(("@", "#[")) and not new.lines[unit.start].strip().startswith(("@", "#[")):
        raise UsageError(f"leaves out {decorator[:60]!r}")
    if not (place.alone and unit.alone):
        raise UsageError(f"defines {unit.name!r}, which shares a line with something else")
    start = place.lead if unit.lead < unit.start else place.start
    return Splice(start, place.stop, _indent_like(code, old.lines[place.start]))


def _is_same_kind(place: _DefinitionLines, unit: _DefinitionLines, code: Sequence[str]) -> bool:
    """Return whether both are of one kind; a lone function may be a method, if it looks like one."""
    if place.kind == "method" and unit.kind == "function":
        return bool(_METHOD.search("\n".join(code)))
    return place.kind == unit.kind


def _indent_like(code: Sequence[str], like: str) -> tuple[str, ...]:
    """Return the lines moved to the indentation of the line that they replace."""
    wanted = like[: len(like) - len(like.lstrip())]
    indent = code[0][: len(code[0]) - len(code[0].lstrip())]
    if wanted == indent:
        return tuple(code)
    return tuple(wanted + line.removeprefix(indent) if line.strip() else line for line in code)


def _make_definition(root: "Node", lines: Sequence[str], name: str, kind: str, line: int) -> _DefinitionLines:
    """Return the whole definition whose name is on a line."""
    column = len(lines[line]) - len(lines[line].lstrip())  # blanks of one byte each
    node = root.descendant_for_point_range((line, column), (line, column))
    assert node is not None
    while (above := node.parent) is not None and above.parent is not None and above.type not in _HOLDERS:
        if above.start_point.row != line and above.type not in _WRAPPERS:
            break
        node = above
    start, before = node.start_point.row, node.prev_sibling
    while before is not None and before.type in _ATTRIBUTES and _last_row(before) == start - 1:
        start, before = before.start_point.row, before.prev_sibling
    lead = start
    while (
        before is not None
        and "comment" in before.type
        and _begins_line(before, lines)
        and _last_row(before) == lead - 1
    ):
        lead, before = before.start_point.row, before.prev_sibling
    top = node.parent is None or node.parent.parent is None
    return _DefinitionLines(name, kind, lead, start, _last_row(node) + 1, top, _is_alone(node, lines))


def _begins_line(node: "Node", lines: Sequence[str]) -> bool:
    """Return whether only blanks precede a node on its first line."""
    return not lines[node.start_point.row].encode("utf-8", "replace")[: node.start_point.column].strip()


def _is_alone(node: "Node", lines: Sequence[str]) -> bool:
    after = lines[node.end_point.row].encode("utf-8", "replace")[node.end_point.column :].strip(b" \t;,")
    return _begins_line(node, lines) and (not after or after.startswith((b"#", b"//", b"/*", b"--")))


def _last_row(node: "Node") -> int:
    """Return a node's last row; some comments include the line end."""
    end = node.end_point
    return end.row if end.column else end.row - 1
