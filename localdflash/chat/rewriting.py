"""Apply a code block to a file: replace the whole file, or the definitions that have the same names."""

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
_OMISSION = re.compile(
    rf"{_COMMENT}(?:\.{{3}}|…)|{_COMMENT}(?=.*\b{_OMITTED}\b).*(?:\.{{3}}|…)\W*$|"
    rf"{_COMMENT}(?:the )?{_OMITTED}\b.*\b(?:code|file|contents?|methods?|functions?|imports?|unchanged|same|here)\b|"
    r"^\s*[\[(<]?(?:…|\.{3})[\])>]?\s*$",
    re.IGNORECASE,
)
_ATTRIBUTES = {"attribute_item", "decorator"}  # node types of tree-sitter, as in `_WRAPPERS` and `_CONTAINERS`
_METHOD = re.compile(r"\b(?:self|cls)\b|@staticmethod\b")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_WRAPPERS = {"decorated_definition", "export_statement", "template_declaration", "ambient_declaration"}
_CONTAINERS = {
    *("block", "class_body", "declaration_list", "statement_block", "field_declaration_list", "interface_body"),
    *("enum_body", "enum_body_declarations", "impl_item", "program", "module", "source_file", "translation_unit"),
    *("chunk", "namespace_definition", "mod_item", "linkage_specification", "preproc_ifdef", "preproc_if"),
}


class _DefinitionLines(NamedTuple):
    """Lines `start` to `stop` of a definition with its decorators. `lead`: first line of the comments just above."""

    name: str
    kind: str
    lead: int
    start: int
    stop: int
    is_top_level: bool
    is_alone: bool  # no other code is on its first or last line


def find_rewrite(path: str, old: Sequence[str], code: Sequence[str]) -> list[Splice]:
    """Return the splices that apply a code block to the lines `old`; UsageError if that is ambiguous or incomplete."""
    if sum(1 for line in code if _FENCE.match(line)) % 2:
        raise UsageError("has an unclosed fence inside, so that its end is ambiguous")
    omission = _find_omission(code, old, path)
    if not "".join(old).strip():
        if omission:
            raise UsageError(_explain_partial(omission))
        return [Splice(0, len(old), code)]
    from localdflash.text.syntax import language_of

    language = language_of(path, text="\n".join(old))
    if not language:
        if omission or not _resembles(old, code):
            raise UsageError(_explain_partial(omission))
        return diff_lines(old, code)
    before, after = _Outline(path, language, old), _Outline(path, language, code)
    if not omission and after.covers(before):
        return diff_lines(old, code)
    return _replace_definitions(before, after, omission)


def _find_omission(code: Sequence[str], old: Sequence[str], path: str) -> str:
    """Return a line of the block such as "# ... rest unchanged", unless the file has this line; "" if there is none."""
    present = {line.strip() for line in old}
    if path.endswith((".py", ".pyi")):
        present.add("...")  # an empty body
    candidates = (line.strip() for line in code if len(line) <= 200 and _OMISSION.match(line))
    return next((line for line in candidates if line not in present), "")


def _explain_partial(omission: str) -> str:
    if omission:
        return f"omits parts: {omission[:60]!r}"
    return "is not the whole file, and its position is unknown"


def _resembles(old: Sequence[str], code: Sequence[str]) -> bool:
    """Return whether the code may be the whole file: it has the file's first line, and at least half of its lines."""
    before, after = ([line.strip() for line in lines if line.strip()] for lines in (old, code))
    common = (Counter(before) & Counter(after)).total()
    return bool(after) and after[0] == before[0] and 2 * common >= len(before)


class _Outline:
    """Definitions of a text, and first lines of its other top-level statements (`others`)."""

    def __init__(self, path: str, language: str, lines: Sequence[str]) -> None:
        from localdflash.code.context.definitions import find_definitions
        from localdflash.text.syntax import parse

        text = "\n".join(lines)
        tree = parse(language, text)
        assert tree is not None
        self.lines = lines
        self.has_error = tree.root_node.has_error
        symbols = find_definitions(path, language, text)
        definitions = (_make_definition(tree.root_node, lines, each.name, each.kind, each.line) for each in symbols)
        self.definitions = list(dict.fromkeys(definitions))
        within = {line for definition in self.definitions for line in range(definition.lead, definition.stop)}
        self.others = [
            node.text.decode("utf-8", "replace").split("\n")[0].strip()
            for node in tree.root_node.named_children
            if node.start_point.row not in within and "comment" not in node.type and node.text
        ]

    def names(self) -> set[tuple[str, str]]:
        """Return (name of the enclosing top-level definition or "", name) of every definition."""
        tops = [definition for definition in self.definitions if definition.is_top_level]
        owners = {line: top.name for top in tops for line in range(top.start, top.stop)}
        return {("" if each.is_top_level else owners.get(each.start, ""), each.name) for each in self.definitions}

    def members(self, outer: _DefinitionLines) -> set[str]:
        """Return the names of the definitions within `outer`."""
        inside = (each for each in self.definitions if not each.is_top_level and outer.start <= each.start < outer.stop)
        return {each.name for each in inside if each != outer}

    def covers(self, old: "_Outline") -> bool:
        """Return whether this may be a new version of `old`: it has all names, and at least half of the statements."""
        common = (Counter(old.others) & Counter(self.others)).total()
        return old.names() <= self.names() and 2 * common >= len(old.others) and (not self.has_error or old.has_error)

    def find(self, name: str) -> list[_DefinitionLines]:
        """Return the top-level definitions of a name; if there are none, its other definitions."""
        definitions = [definition for definition in self.definitions if definition.name == name]
        return [definition for definition in definitions if definition.is_top_level] or definitions


def _replace_definitions(old: _Outline, new: _Outline, omission: str) -> list[Splice]:
    """Return a splice for each top-level definition of `new`, which replaces the definition of that name in `old`."""
    tops = [definition for definition in new.definitions if definition.is_top_level]
    if omission or not tops:
        raise UsageError(_explain_partial(omission))
    if new.has_error:
        raise UsageError("has a syntax error")
    if unknown := next((text for text in new.others if text not in old.others), ""):
        raise UsageError(f"is not the whole file, and the position of this line is unknown: {unknown[:60]!r}")
    if duplicate := next((definition.name for definition in tops if len(new.find(definition.name)) > 1), ""):
        raise UsageError(f"defines {duplicate!r} twice")
    splices = sorted({_replace_definition(old, new, definition) for definition in tops})
    if any(splice.stop > after.start for splice, after in pairwise(splices)):
        raise UsageError("defines things that overlap in the file")
    return splices


def _replace_definition(old: _Outline, new: _Outline, definition: _DefinitionLines) -> Splice:
    targets = old.find(definition.name)
    if not targets:
        raise UsageError(f"is not the whole file, and the file has no {definition.name!r} to replace")
    if len(targets) > 1:
        raise UsageError(f"defines {definition.name!r}, which the file defines {len(targets)} times")
    target, code = targets[0], new.lines[definition.lead : definition.stop]
    if not _is_same_kind(target, definition, code):
        raise UsageError(f"defines {definition.name!r} as a {definition.kind}, which is a {target.kind} in the file")
    if omitted := sorted(old.members(target) - new.members(definition)):
        raise UsageError(f"omits {omitted[0]!r}")
    decorator = old.lines[target.start].strip()
    if decorator.startswith(("@", "#[")) and not new.lines[definition.start].strip().startswith(("@", "#[")):
        raise UsageError(f"omits {decorator[:60]!r}")
    if not (target.is_alone and definition.is_alone):
        raise UsageError(f"defines {definition.name!r}, which shares a line with something else")
    start = target.lead if definition.lead < definition.start else target.start
    return Splice(start, target.stop, _indent_like(code, old.lines[target.start]))


def _is_same_kind(target: _DefinitionLines, definition: _DefinitionLines, code: Sequence[str]) -> bool:
    """Return whether both have the same kind; a function with `self`, `cls` or @staticmethod counts as a method."""
    if target.kind == "method" and definition.kind == "function":
        return bool(_METHOD.search("\n".join(code)))
    return target.kind == definition.kind


def _indent_like(code: Sequence[str], replaced: str) -> tuple[str, ...]:
    """Return the code with the indentation of the line `replaced`."""
    new_indent = replaced[: len(replaced) - len(replaced.lstrip())]
    indent = code[0][: len(code[0]) - len(code[0].lstrip())]
    if new_indent == indent:
        return tuple(code)
    return tuple(new_indent + line.removeprefix(indent) if line.strip() else line for line in code)


def _make_definition(root: "Node", lines: Sequence[str], name: str, kind: str, line: int) -> _DefinitionLines:
    """Return the lines of the definition whose name is on line `line`."""
    column = len(lines[line]) - len(lines[line].lstrip())  # also the byte offset, because blanks are ASCII
    node = root.descendant_for_point_range((line, column), (line, column))
    assert node is not None
    while (above := node.parent) is not None and above.parent is not None and above.type not in _CONTAINERS:
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
    is_top_level = node.parent is None or node.parent.parent is None
    return _DefinitionLines(name, kind, lead, start, _last_row(node) + 1, is_top_level, _is_alone(node, lines))


def _begins_line(node: "Node", lines: Sequence[str]) -> bool:
    """Return whether a node is preceded only by blanks on its first line."""
    return not lines[node.start_point.row].encode("utf-8", "replace")[: node.start_point.column].strip()


def _is_alone(node: "Node", lines: Sequence[str]) -> bool:
    after = lines[node.end_point.row].encode("utf-8", "replace")[node.end_point.column :].strip(b" \t;,")
    return _begins_line(node, lines) and (not after or after.startswith((b"#", b"//", b"/*", b"--")))


def _last_row(node: "Node") -> int:
    """Return a node's last row. Nodes of some comments include the line ending, and end at column 0 of the next row."""
    end = node.end_point
    return end.row if end.column else end.row - 1
