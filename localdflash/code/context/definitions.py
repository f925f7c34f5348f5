"""Find the definitions of a file, at its top level and in its classes, with a text that shows how to use them.

The text of a function is its signature, for Python with the first line of its docstring. The text of a small class is
the whole class; the text of a larger class is its first line and the first line of each member.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tree_sitter import Node

from localdflash.text import syntax

MAX_TEXT_CHARS = 600  # per definition
MAX_DEFINITIONS = 2_000  # per file
_SMALL_CLASS_LINES = 12  # a class of at most this many lines is kept whole
_LAST_NAME = re.compile(r"[\w$]+$")
_DOCSTRING_OPENING = re.compile(r"""[rRuU]?('{3}|"{3})\s*""")
_DUNDER_NAME = re.compile(r"__\w+__$")


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition in a file; line numbers are 0-based."""

    name: str
    path: str  # relative to the workspace folder
    line: int
    text: str
    kind: str  # function, method, class, type, constant
    owner: str  # name of the class that the definition is a member of, or ""
    lines: tuple[int, int]  # first and last

    @property
    def qualified(self) -> str:
        """Return `owner.name`, or the name alone."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


class _Rules(NamedTuple):
    """Node types of one grammar."""

    kinds: dict[str, str]  # node type that defines a name: kind of `Definition`
    containers: frozenset[str]  # node types that contain definitions but define nothing


def _rules(containers: str, **kinds: str) -> _Rules:
    kind_of = {node_type: kind for kind, types in kinds.items() for node_type in types.split()}
    return _Rules(kind_of, frozenset(containers.split()))


_C = _rules(
    "preproc_ifdef preproc_if preproc_else preproc_elif linkage_specification declaration_list",
    function="function_definition declaration",
    type="struct_specifier enum_specifier union_specifier type_definition",
    constant="preproc_def preproc_function_def",
)
_JAVASCRIPT = _rules(
    "export_statement lexical_declaration variable_declaration",
    function="function_declaration generator_function_declaration",
    **{"class": "class_declaration", "method": "method_definition", "constant": "variable_declarator"},
)
_TYPESCRIPT = _Rules(
    _JAVASCRIPT.kinds
    | {"function_signature": "function", "abstract_class_declaration": "class", "abstract_method_signature": "method"}
    | dict.fromkeys(("interface_declaration", "type_alias_declaration", "enum_declaration"), "type"),
    _JAVASCRIPT.containers
    | {"ambient_declaration", "expression_statement", "internal_module", "module", "statement_block"},
)
_RULES = {
    "c": _C,
    "cpp": _Rules(
        _C.kinds | {"class_specifier": "class", "alias_declaration": "type", "field_declaration": "method"},
        _C.containers | {"namespace_definition", "template_declaration"},
    ),
    "go": _rules(
        "type_declaration const_declaration var_declaration var_spec_list",
        function="function_declaration",
        method="method_declaration",
        type="type_spec type_alias",
        constant="const_spec var_spec",
    ),
    "java": _rules(
        "enum_body_declarations",
        method="method_declaration",
        type="interface_declaration enum_declaration record_declaration annotation_type_declaration",
        **{"class": "class_declaration"},
    ),
    "javascript": _JAVASCRIPT,
    "lua": _rules("variable_declaration", function="function_declaration", constant="assignment_statement"),
    "python": _rules(
        "decorated_definition if_statement elif_clause else_clause try_statement except_clause finally_clause "
        "with_statement block expression_statement",
        function="function_definition",
        constant="assignment",
        type="type_alias_statement",
        **{"class": "class_definition"},
    ),
    "rust": _rules(
        "impl_item mod_item declaration_list",
        function="function_item function_signature_item",
        type="struct_item enum_item trait_item type_item union_item",
        constant="const_item static_item macro_definition",
    ),
    "tsx": _TYPESCRIPT,
    "typescript": _TYPESCRIPT,
}
_FAMILIES = {"cpp": "c", "tsx": "javascript", "typescript": "javascript"}
_CLASSES = {"class", "type"}
_C_SPECIFIERS = {"struct_specifier", "enum_specifier", "union_specifier", "class_specifier"}
_SPECS = {"variable_declarator", "type_spec", "const_spec", "var_spec"}  # parts of a declaration
_WRAPPERS = {"decorated_definition", "export_statement", "template_declaration", "expression_statement"}
_OWNERS = {"impl_item", "trait_item"}  # Rust: their functions are methods


def language_family(language: str) -> str:
    """Return the family of a language: languages of one family use each other's definitions."""
    return _FAMILIES.get(language, language)


def find_definitions(path: str, language: str, text: str) -> list[Definition]:
    """Return at most `MAX_DEFINITIONS` definitions in file order; [] if the language has no grammar."""
    tree, rules = syntax.parse(language, text), _RULES.get(language)
    if tree is None or rules is None:
        return []
    source = text.encode("utf-8", "replace")
    definitions: list[Definition] = []
    variables = set()
    for node, node_kind, owner in _walk(tree.root_node, rules):
        name = _name(node)
        if name is None or _DUNDER_NAME.match(name):
            continue
        kind = _refine_kind(node, node_kind)
        if kind == "constant":
            if name in variables:
                continue  # a later assignment
            variables.add(name)
        outer = node.parent if node.parent is not None and node.parent.type in _WRAPPERS else node
        lines = outer.start_point.row, outer.end_point.row
        definitions.append(Definition(name, path, node.start_point.row, _text(source, node, kind), kind, owner, lines))
        if len(definitions) == MAX_DEFINITIONS:
            break
    return definitions


def _walk(root: Node, rules: _Rules) -> Iterator[tuple[Node, str, str]]:
    """Yield nodes of definitions with kind and owner, in file order. Iterative, because nesting may be too deep."""
    stack = [(child, False, "") for child in reversed(root.named_children)]
    while stack:
        node, is_member, owner = stack.pop()
        kind = rules.kinds.get(node.type)
        if kind in {"function", "class", "type", "method"} or (kind == "constant" and not is_member):
            yield node, "method" if is_member and kind == "function" else kind, owner
        children: list[Node] = []
        if kind in _CLASSES and (body := node.child_by_field_name("body")):
            children, is_member, owner = body.named_children, True, _name(node) or ""
        elif node.type in rules.containers:
            children, is_member = node.named_children, is_member or node.type in _OWNERS
            owner = _owner(node) or owner
        stack += [(child, is_member, owner) for child in reversed(children)]


def _owner(node: Node) -> str:
    """Return the type of a Rust `impl`; "" for any other node."""
    type_node = node.child_by_field_name("type") if node.type in _OWNERS else None
    text = type_node.text if type_node is not None else None
    match = re.match(r"\w+", text.decode("utf-8", "replace")) if text else None
    return match[0] if match else ""


def _refine_kind(node: Node, kind: str) -> str:
    """Return `kind`, the kind of the node's type, or "function" for a variable that holds a function."""
    value = node.child_by_field_name("value")
    if value is not None and value.type in {"arrow_function", "function_expression", "generator_function"}:
        return "function"
    if node.type == "declaration" and _declared_function(node) is None:
        return "constant"
    return kind


def _name(node: Node) -> str | None:
    """Return the name that a node defines, the last part of a qualified name; None if it defines no name."""
    if node.type == "field_declaration" and _declared_function(node) is None:
        return None  # C++: a data field
    if node.type in _C_SPECIFIERS and node.child_by_field_name("body") is None:
        return None  # C: the type is used, not defined
    name_node = node.child_by_field_name("name") or node.child_by_field_name("left")
    if name_node is None and node.type == "assignment_statement" and node.named_children:
        name_node = node.named_children[0].child_by_field_name("name")
    while name_node is None and (declarator := node.child_by_field_name("declarator")):
        node = declarator
        if not node.child_by_field_name("declarator"):
            name_node = node
    if name_node is None or name_node.text is None:
        return None
    last = _LAST_NAME.search(name_node.text.decode("utf-8", "replace"))
    name = last[0] if last else ""
    is_target = name_node.type in {"attribute", "subscript", "pattern_list", "tuple_pattern", "list_pattern"}
    return None if is_target or not name.isidentifier() else name


def _declared_function(node: Node) -> Node | None:
    """Return the declarator of the function that a C declaration declares, or None."""
    inner = node.child_by_field_name("declarator")
    while inner is not None and inner.type != "function_declarator":
        inner = inner.child_by_field_name("declarator")
    return inner


def _text(source: bytes, node: Node, kind: str) -> str:
    parent = node.parent
    if parent is not None and parent.type == "template_declaration":
        return f"{_dedented(source, parent.start_byte, node.start_byte, 0)} {_own_text(source, node, kind)}"
    if parent is not None and node.type in _SPECS and len(parent.named_children) == 1:
        return _own_text(source, parent, kind, node)  # includes its `const` or `type`
    return _own_text(source, node, kind)


def _own_text(source: bytes, node: Node, kind: str, inner: Node | None = None) -> str:
    if kind in _CLASSES:
        text = _dedented(source, node.start_byte, node.end_byte, node.start_point.column)
        if text.count("\n") < _SMALL_CLASS_LINES and len(text) <= MAX_TEXT_CHARS:
            return text
        return _class_outline(source, node)
    if kind == "constant":
        return _dedented(source, node.start_byte, min(node.end_byte, node.start_byte + 200), 0).split("\n")[0]
    return _signature(source, node, inner or node)


def _signature(source: bytes, node: Node, inner: Node) -> str:
    """Return the source of a definition up to its body, then the first line of its docstring."""
    holder = inner.child_by_field_name("value") or inner
    body = holder.child_by_field_name("body")
    before = body.prev_sibling if body is not None else None
    while before is not None and "comment" in before.type:
        before = before.prev_sibling
    end = before.end_byte if before is not None else node.end_byte
    text = _dedented(source, node.start_byte, end, node.start_point.column)
    text = text[:MAX_TEXT_CHARS]
    first = body.named_children[0] if body is not None and body.named_children else None
    if first is not None and first.type == "expression_statement" and first.named_children:
        first = first.named_children[0]
    if first is None or first.type != "string" or node.type not in {"function_definition", "class_definition"}:
        return text
    docstring = _dedented(source, first.start_byte, first.end_byte, 0)
    opening = _DOCSTRING_OPENING.match(docstring)
    if opening is None or "\n" not in docstring:
        return f"{text}\n    {docstring[:MAX_TEXT_CHARS]}"
    line = docstring[opening.end() :].split("\n")[0]
    return f"{text}\n    {opening[0].rstrip()}{line[:MAX_TEXT_CHARS]}{opening[1]}"


def _class_outline(source: bytes, node: Node) -> str:
    """Return the signature of a class and the first line of each member, as long as they fit."""
    lines, length = [_signature(source, node, node)], 0
    body = node.child_by_field_name("body")
    docstring = lines[0].count("\n") > 0 and node.type == "class_definition"
    for number, child in enumerate(body.named_children if body is not None else ()):
        if (number == 0 and docstring) or "comment" in child.type:
            continue
        member = child.child_by_field_name("definition") or child  # without decorators
        line = source[member.start_byte : member.start_byte + 160].decode("utf-8", "ignore").split("\n")[0].rstrip()
        length += len(line) + 5
        if length > MAX_TEXT_CHARS:
            lines.append("    ...")
            break
        lines.append(f"    {line}")
    return "\n".join(lines)


def _dedented(source: bytes, start: int, end: int, column: int) -> str:
    """Return the source from byte `start` to `end`, its lines after the first dedented by `column`."""
    first, *later_lines = source[start:end].decode("utf-8", "ignore").split("\n")
    dedented = [line[column:] if not line[:column].strip() else line for line in later_lines]
    return "\n".join(line.rstrip() for line in (first, *dedented))
