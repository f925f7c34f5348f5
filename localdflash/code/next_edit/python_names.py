"""Roles and scopes of identifiers in Python."""

from collections.abc import Callable, Iterator

from tree_sitter import Node

from localdflash.code.next_edit.source import Role, Scope, is_field, outward

_COMPREHENSIONS = {"list_comprehension", "set_comprehension", "dictionary_comprehension", "generator_expression"}
_FUNCTIONS = {"function_definition", "lambda"}
_PATTERNS = {"pattern_list", "tuple_pattern", "list_pattern", "list_splat_pattern"}
_CAPTURES = {"case_pattern", "keyword_pattern", "union_pattern"}
_PARAMETERS = {"parameters", "lambda_parameters"}
_SPLATS = {"list_splat_pattern", "dictionary_splat_pattern"}
_TARGETS = {
    **dict.fromkeys(("assignment", "augmented_assignment", "for_statement", "for_in_clause"), "left"),
    "named_expression": "name",
    "as_pattern": "alias",
}


def role(node: Node) -> Role | None:
    """Return the role of an identifier; None if it is not a name that can be resolved."""
    if node.type != "identifier" or node.parent is None:
        return None
    return _ROLES.get(node.parent.type, _plain)(node, node.parent)


def scopes(node: Node) -> Iterator[Scope]:
    """Yield the scopes where a name used at a node is looked up, innermost first; a class only from its own body."""
    below, inside = None, False
    for child, parent in outward(node):
        if parent.type == "module":
            yield Scope(parent)
        elif _is_scope_for(parent, child, below):
            yield Scope(parent)
            inside = True
        elif parent.type == "class_definition" and is_field(child, "body") and not inside:
            yield Scope(parent, has_members=True)
            inside = True
        below = child


def method_class(function: Node) -> Node | None:
    """Return the class of a method; None for a static method or a function outside of classes."""
    parent = function.parent
    if parent is not None and parent.type == "decorated_definition":
        if any(b"staticmethod" in (one.text or b"") for one in parent.children if one.type == "decorator"):
            return None
        parent = parent.parent
    owner = parent.parent if parent is not None and parent.type == "block" else None
    return owner if owner is not None and owner.type == "class_definition" else None


def parameter_name(parameter: Node) -> Node | None:
    """Return the identifier of a parameter; None for a lone `*` or `/`."""
    identifier = parameter.child_by_field_name("name")
    if identifier is None and parameter.type in {"typed_parameter", *_SPLATS}:
        identifier = parameter.named_children[0]
    identifier = identifier or parameter
    if identifier.type in _SPLATS:
        identifier = identifier.named_children[0]
    return identifier if identifier.type == "identifier" else None


def _is_scope_for(parent: Node, child: Node, below: Node | None) -> bool:
    """Return whether `parent` is a scope for a name in `below`, a child of `child`, which is a child of `parent`."""
    if parent.type in _FUNCTIONS:
        return is_field(child, "body")
    return parent.type in _COMPREHENSIONS and not _is_first_iterable(parent, child, below)


def _plain(node: Node, parent: Node) -> Role:
    if function := _function_of_parameter(node):
        return Role(Scope(function), binds=True)
    if _is_type_parameter(parent):
        return Role(is_unclear=True)
    return _binding_role(node) if _is_target(node) else Role()


def _binding_role(node: Node) -> Role:
    for scope in scopes(node):
        if scope.node.type not in _COMPREHENSIONS or _is_comprehension_target(node):
            return Role(scope, binds=True)
    return Role(is_unclear=True)


def _is_comprehension_target(node: Node) -> bool:
    """Return whether `node` is a target of a comprehension's `for`, directly or within a pattern."""
    while node.parent is not None and node.parent.type in _PATTERNS:
        node = node.parent
    return node.parent is not None and node.parent.type == "for_in_clause"


def _is_first_iterable(comprehension: Node, clause: Node, below: Node | None) -> bool:
    """Return whether `below` is a comprehension's first iterable, which Python evaluates outside the comprehension."""
    first = next((child for child in comprehension.children if child.type == "for_in_clause"), None)
    return clause == first and below is not None and is_field(below, "right")


def _is_target(node: Node) -> bool:
    while node.parent is not None and node.parent.type in {*_PATTERNS, "as_pattern_target"}:
        node = node.parent
    parent = node.parent
    if parent is None:
        return False
    in_case = parent.parent is not None and parent.parent.type == "case_pattern"
    if parent.type == "splat_pattern" or (parent.type == "as_pattern" and in_case):
        return True  # captures of a `case`
    return parent.type in _TARGETS and is_field(node, _TARGETS[parent.type])


def _dotted(node: Node, dotted: Node) -> Role | None:
    outer, first = dotted.parent, dotted.children[0] == node
    kind = outer.type if outer is not None else ""
    if kind == "import_statement":
        return _import_role(dotted) if first else None
    if kind == "import_from_statement":
        return None if is_field(dotted, "module_name") else _import_role(dotted)
    if "import" in kind:
        return None
    if kind in _CAPTURES and dotted.child_count == 1:
        return _binding_role(node)
    return Role() if first else None


def _import_role(node: Node) -> Role:
    return Role(_binding_role(node).scope, binds=True, is_imported=True)


def _function_of_parameter(node: Node) -> Node | None:
    parameter = node
    while parameter.parent is not None and parameter.parent.type not in _PARAMETERS:
        parameter = parameter.parent
        if parameter.type not in {"typed_parameter", "default_parameter", "typed_default_parameter", *_SPLATS}:
            return None
    if parameter.parent is None or parameter_name(parameter) != node:
        return None
    return parameter.parent.parent


def _is_type_parameter(parent: Node) -> bool:
    outer = parent.parent
    is_in_list = parent.type == "type" and outer is not None and outer.type == "type_parameter"
    return is_in_list and outer is not None and outer.parent is not None and outer.parent.type != "generic_type"


def _member(node: Node, attribute: Node) -> Role | None:
    holder = attribute.child_by_field_name("object")
    if holder is None or holder.type != "identifier":
        return None
    owner = _class_of_self(holder)
    return Role(Scope(owner, has_members=True), binds=_is_target(attribute)) if owner is not None else None


def _class_of_self(holder: Node) -> Node | None:
    """Return the class whose method has this identifier as its first parameter (`self` or `cls`), or None."""
    for _, function in outward(holder):
        parameters = function.child_by_field_name("parameters") if function.type in _FUNCTIONS else None
        names = [parameter_name(one) for one in parameters.named_children] if parameters is not None else []
        texts = [one.text for one in names if one is not None]
        if holder.text in texts:
            return method_class(function) if texts[0] == holder.text else None
    return None


_ROLES: dict[str, Callable[[Node, Node], Role | None]] = {
    "attribute": lambda node, parent: (_member if is_field(node, "attribute") else _plain)(node, parent),
    "dotted_name": _dotted,
    "aliased_import": lambda node, _: _binding_role(node),
    **dict.fromkeys(
        ("keyword_argument", "keyword_pattern"),
        lambda node, parent: None if parent.children[0] == node else _plain(node, parent),
    ),
    **dict.fromkeys(
        ("global_statement", "nonlocal_statement"), lambda node, _: Role(next(scopes(node)), declares_outer=True)
    ),
    **dict.fromkeys(
        ("function_definition", "class_definition"),
        lambda node, parent: _binding_role(parent) if is_field(node, "name") else _plain(node, parent),
    ),
}
