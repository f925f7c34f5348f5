"""Roles of identifiers in JavaScript and TypeScript (bindings, uses, members), and the scopes that resolve them."""

from collections.abc import Callable, Iterator

from tree_sitter import Node

from localdflash.code.next_edit.source import Role, Scope, is_field, outward

SHORTHAND = {"shorthand_property_identifier", "shorthand_property_identifier_pattern"}
_PLAIN = {"identifier", "type_identifier", *SHORTHAND}
_NAMED_FUNCTIONS = {"function_declaration", "generator_function_declaration"}
_EXPRESSIONS = {"function_expression", "generator_function", "class"}  # their names are visible only inside
_FUNCTIONS = _NAMED_FUNCTIONS | {"function_expression", "generator_function", "arrow_function", "method_definition"}
_BLOCKS = {"program", "statement_block", "for_statement", "for_in_statement", "catch_clause", "switch_body"}
_TYPES = {"interface_declaration", "type_alias_declaration"}
_CLASSES = {"class_declaration", "abstract_class_declaration"}
_DECLARATIONS = _NAMED_FUNCTIONS | _CLASSES | _TYPES | {"function_signature", "enum_declaration", "internal_module"}
_VAR_SCOPES = {*_FUNCTIONS, "program", "internal_module", "class_static_block"}
_FIELDS = {"public_field_definition", "field_definition"}
_MEMBERS = _FIELDS | {"property_signature", "method_definition", "method_signature", "abstract_method_signature"}
_PATTERNS = {  # destructuring pattern: the field that binds names, "" for all children
    **dict.fromkeys(("object_pattern", "array_pattern", "rest_pattern"), ""),
    **dict.fromkeys(("object_assignment_pattern", "assignment_pattern"), "left"),
    "pair_pattern": "value",
}
_SCOPES = _BLOCKS | _FUNCTIONS | _CLASSES | _TYPES | {"class"}
_JSX = {"jsx_opening_element", "jsx_closing_element", "jsx_self_closing_element"}
# Parents of identifiers that are not looked up in the file, and of identifiers that these rules do not understand.
_UNRESOLVED = {"export_specifier", "index_signature", "namespace_export"}
_UNCLEAR = {"import_alias", "import_require_clause", "infer_type", "mapped_type_clause"}


def role(node: Node) -> Role | None:
    """Return the role of an identifier; None if it is not a name that can be resolved."""
    parent = node.parent
    if parent is None:
        return None
    if node.type in {"property_identifier", "private_property_identifier"}:
        return _member(node, parent)
    if node.type not in _PLAIN or _is_unresolved(node, parent):
        return None
    return _ROLES.get(parent.type, _plain)(node, parent)


def scopes(node: Node) -> Iterator[Scope]:
    """Yield the scopes where a name used at a node is looked up, innermost first."""
    for child, parent in outward(node):
        if parent.type in _DECLARATIONS and is_field(child, "name"):
            continue  # a declaration's name belongs to the scope around it
        if parent.type in _SCOPES or parent.child_by_field_name("parameters") is not None:  # for example a signature
            yield Scope(parent)


def _class_of_this(node: Node) -> Node | None:
    """Return the class whose instance `this` is at a node, or None."""
    for child, parent in outward(node):
        if parent.type == "class_body":
            return parent.parent if child.type in _MEMBERS else None
        if parent.type in _FUNCTIONS - {"arrow_function", "method_definition"}:
            return None  # a function has a `this` of its own
        if parent.type == "object" and child.type == "method_definition":
            return None  # `this` is the object
    return None


def _is_unresolved(node: Node, parent: Node) -> bool:
    """Return whether no scope of the file resolves an identifier."""
    if parent.type == "nested_type_identifier":
        return not is_field(node, "module")  # of `A.B`, only A is resolved
    if parent.type in _JSX:
        return (node.text or b"")[:1].islower()  # <div> is an HTML element, <Div> a component
    return parent.type in _UNRESOLVED


def _imported(node: Node, specifier: Node) -> Role | None:
    """Return the role of a name in `import { name }` or `import { name as alias }`, which binds only the alias."""
    alias = specifier.child_by_field_name("alias")
    if alias is not None and alias != node:
        return None
    return Role(_block_scope(specifier), binds=True, is_imported=alias is None)


def _type_parameter(node: Node, parent: Node) -> Role | None:
    declaration = parent.parent.parent if parent.parent is not None else None
    if declaration is None or not is_field(node, "name"):
        return _plain(node, parent)
    return Role(Scope(declaration), binds=True)


def _defined(node: Node, parent: Node) -> Role | None:
    if not is_field(node, "name"):
        return _plain(node, parent)
    return Role(Scope(parent) if parent.type in _EXPRESSIONS else _block_scope(parent), binds=True)


def _plain(node: Node, _parent: Node) -> Role | None:
    """Return the role of a plain identifier: a binding in a declaration or parameter, or a use."""
    pattern = _pattern(node)
    if pattern is None or (parent := pattern.parent) is None:
        return Role()
    if parent.type == "variable_declarator" and is_field(pattern, "name"):
        hoisted = parent.parent is not None and parent.parent.type == "variable_declaration"
        return Role(_hoisted_scope(parent) if hoisted else _block_scope(parent), binds=True)
    if parent.type == "for_in_statement":
        kind = parent.child_by_field_name("kind")
        if kind is None or not is_field(pattern, "left"):
            return Role()
        return Role(_hoisted_scope(parent) if kind.type == "var" else Scope(parent), binds=True)
    if parent.type in {"catch_clause", "arrow_function"} and is_field(pattern, "parameter"):
        return Role(Scope(parent), binds=True)
    return _parameter(pattern, parent)


def _pattern(node: Node) -> Node | None:
    """Return the outermost pattern in which a node is a target; None if the node is a default or key."""
    while node.parent is not None and node.parent.type in _PATTERNS:
        field = _PATTERNS[node.parent.type]
        if field and not is_field(node, field):
            return None
        node = node.parent
    return node


def _parameter(node: Node, parent: Node) -> Role:
    if parent.type in {"required_parameter", "optional_parameter"}:
        if not is_field(node, "pattern"):
            return Role()
        if any(child.type in {"accessibility_modifier", "readonly"} for child in parent.children):
            return Role(is_unclear=True)  # TypeScript: both a parameter and a member of the class
        parent = parent.parent or parent
    if parent.type != "formal_parameters" or parent.parent is None:
        return Role()
    return Role(Scope(parent.parent), binds=True)


def _member(node: Node, parent: Node) -> Role | None:
    if parent.type in _MEMBERS and (is_field(node, "name") or is_field(node, "property")):
        body = parent.parent
        owner = body.parent if body is not None and body.type in {"class_body", "interface_body"} else None
        return Role(Scope(owner, has_members=True), binds=True) if owner is not None else None
    holder = parent.child_by_field_name("object") if parent.type == "member_expression" else None
    owner = _class_of_this(parent) if holder is not None and holder.type == "this" else None
    if owner is None:
        return None
    is_set = parent.parent is not None and parent.parent.type == "assignment_expression" and is_field(parent, "left")
    return Role(Scope(owner, has_members=True), binds=is_set)


def _block_scope(node: Node) -> Scope | None:
    return next((Scope(parent) for _, parent in outward(node) if parent.type in _BLOCKS | _FUNCTIONS), None)


def _hoisted_scope(node: Node) -> Scope | None:
    """Return the scope of a `var` at a node: its function, file, namespace or static block."""
    return next((Scope(parent) for _, parent in outward(node) if parent.type in _VAR_SCOPES), None)


_ROLES: dict[str, Callable[[Node, Node], Role | None]] = {
    "import_specifier": _imported,
    "import_clause": lambda _, clause: Role(_block_scope(clause), binds=True),
    "namespace_import": lambda _, clause: Role(_block_scope(clause), binds=True),
    "type_parameter": _type_parameter,
    **dict.fromkeys(_DECLARATIONS | _EXPRESSIONS, _defined),
    **dict.fromkeys(_UNCLEAR, lambda _node, _parent: Role(is_unclear=True)),
}
