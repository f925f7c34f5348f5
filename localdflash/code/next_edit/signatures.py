"""Parse parameters of functions and arguments of calls, and check whether they match."""

from dataclasses import dataclass
from typing import NamedTuple

from tree_sitter import Node

from localdflash.code.next_edit import python_names
from localdflash.code.next_edit.bindings import BindingIndex, Occurrence
from localdflash.code.next_edit.source import ParsedSource, is_field

PARAMETERS = {"parameters", "formal_parameters"}
ARGUMENTS = {"argument_list", "arguments"}
_CALLS = {"call", "call_expression", "new_expression"}
_VARIADIC = {"list_splat_pattern", "dictionary_splat_pattern", "rest_pattern", "keyword_separator"}
_SPREAD = {"list_splat", "dictionary_splat", "spread_element", "generator_expression"}
_CONSTRUCTORS = {"__init__", "constructor"}


class Parameter(NamedTuple):
    """Parameter of a function. `name` is "" for `*` and destructuring patterns."""

    name: str
    optional: bool
    rest: str  # node type of a variadic parameter (`*args`, `**options`, `*`), or ""


@dataclass(frozen=True)
class Call:
    """Call: the called identifier, the argument list with its brackets, its entries, and the keywords among them."""

    name: Occurrence
    brackets: Node
    items: list[Node]
    keywords: tuple[str, ...]

    @property
    def positional(self) -> int:
        """Return the number of positional arguments."""
        return len(self.items) - len(self.keywords)


@dataclass(frozen=True)
class Function:
    """Signature of a function. `hidden`: number of first parameters that a call does not pass, such as `self`."""

    parameters: list[Parameter]
    hidden: int

    def fits(self, positional: int, keywords: tuple[str, ...]) -> bool:
        """Return whether a call with these arguments is valid: none is missing, surplus or passed twice."""
        end = self._first_variadic()
        plain, keyword_only = self.parameters[self.hidden : end], [one for one in self.parameters[end:] if not one.rest]
        rests = {parameter.rest for parameter in self.parameters}
        if positional > len(plain) and not rests & {"list_splat_pattern", "rest_pattern"}:
            return False
        if {parameter.name for parameter in plain[:positional]} & {*keywords}:
            return False
        left = plain[positional:] + keyword_only
        if not set(keywords) <= {one.name for one in left} and "dictionary_splat_pattern" not in rests:
            return False
        return all(one.optional or one.name in keywords for one in left)

    def index_of(self, position: int, keyword: str) -> int | None:
        """Return the index of the parameter that receives an argument: by `keyword` if not "", else by position."""
        if keyword:
            return next((at for at, one in enumerate(self.parameters) if one.name == keyword), None)
        return self.hidden + position if self.hidden + position < self._first_variadic() else None

    def _first_variadic(self) -> int:
        """Return the index of the first variadic parameter; parameters after it are keyword-only."""
        return next((at for at, one in enumerate(self.parameters) if one.rest), len(self.parameters))


def items(node: Node) -> list[Node]:
    """Return the entries of a parameter or argument list, without Python's `/`."""
    return [one for one in node.named_children if one.type not in {"comment", "positional_separator"}]


def keyword(source: ParsedSource, argument: Node) -> str:
    """Return the keyword of an argument; "" if it is positional."""
    named = argument.child_by_field_name("name") if argument.type == "keyword_argument" else None
    return source.cut(named) if named is not None else ""


def call_with(source: ParsedSource, names: BindingIndex, arguments: Node) -> Call | None:
    """Return the call with this argument list; None if its callee or its number of arguments is unclear."""
    call = arguments.parent
    if call is None or call.type not in _CALLS:
        return None
    called = call.child_by_field_name("function") or call.child_by_field_name("constructor")
    while called is not None and called.type in {"attribute", "member_expression"}:
        called = called.child_by_field_name("attribute") or called.child_by_field_name("property")
    name, given = names.at(called) if called is not None else None, items(arguments)
    if name is None or any(one.type in _SPREAD for one in given):
        return None
    return Call(name, arguments, given, tuple(filter(None, (keyword(source, one) for one in given))))


def function_with(source: ParsedSource, parameters: Node, *, as_member: bool) -> Function | None:
    """Return the function with this parameter list. `as_member`: it is called as a method or constructor."""
    node = parameters.parent
    if node is None:
        return None
    hidden = int(source.language == "python" and as_member and python_names.method_class(node) is not None)
    return Function([_parameter(source, one) for one in items(parameters)], hidden)


def called_function(source: ParsedSource, names: BindingIndex, call: Call) -> Function | None:
    """Return the function in this file that a call refers to; None unless there is exactly one."""
    scope = names.scope(call.name)
    bound = names.bindings(source.cut(call.name.node), scope) if scope else []
    parameters = _parameter_list_of(source, bound[0].node) if len(bound) == 1 else None
    if parameters is None or scope is None:
        return None
    made = bound[0].node.parent is not None and "class" in bound[0].node.parent.type
    return function_with(source, parameters, as_member=scope.members or made)


def name_of(source: ParsedSource, parameters: Node) -> Node | None:
    """Return the identifier by which the function with this parameter list is called: a constructor by its class."""
    function = parameters.parent
    named = function.child_by_field_name("name") if function is not None else None
    if named is None and function is not None and function.parent is not None and is_field(function, "value"):
        named = function.parent.child_by_field_name("name")
    if named is None or source.cut(named) not in _CONSTRUCTORS:
        return named
    owner: Node | None = named
    while owner is not None and "class" not in owner.type.split("_"):
        owner = owner.parent
        if owner is not None and owner.type == "class_body":
            owner = owner.parent
    return owner.child_by_field_name("name") if owner is not None else None


def calls(source: ParsedSource, names: BindingIndex, name: Occurrence) -> list[Call]:
    """Return all calls of the function bound at an identifier, in file order."""
    scope = names.scope(name)
    found = []
    for one in names.references(source.cut(name.node), scope) if scope else ():
        called = one.node
        while called.parent is not None and called.parent.type in {"attribute", "member_expression"}:
            called = called.parent
        if called.parent is None or called.parent.type not in _CALLS or is_field(called, "arguments"):
            continue
        listed = called.parent.child_by_field_name("arguments")
        call = call_with(source, names, listed) if listed is not None else None
        if call and call.name.node == one.node:
            found.append(call)
    return found


def _parameter_list_of(source: ParsedSource, name: Node) -> Node | None:
    defined = name.parent
    if defined is None:
        return None
    value = defined.child_by_field_name("value")
    if "class" in defined.type:
        body = defined.child_by_field_name("body")
        members = [one.child_by_field_name("definition") or one for one in body.named_children] if body else []
        names = [(one, one.child_by_field_name("name")) for one in members]
        made = [one for one, named in names if named is not None and source.cut(named) in _CONSTRUCTORS]
        defined = made[0] if len(made) == 1 else None
    elif value is not None and value.type in {"arrow_function", "function_expression"}:
        defined = value
    return defined.child_by_field_name("parameters") if defined is not None else None


def _parameter(source: ParsedSource, node: Node) -> Parameter:
    named: Node | None
    if source.language == "python":
        named = python_names.parameter_name(node)
        inner = node.named_children[0] if node.type == "typed_parameter" else node
    else:
        inner = node.child_by_field_name("pattern") or node.child_by_field_name("left") or node
        named = inner if inner.type == "identifier" else None
    has_default = node.child_by_field_name("value") is not None
    optional = has_default or node.type in {"optional_parameter", "assignment_pattern"}
    return Parameter(
        source.cut(named) if named is not None else "", optional, inner.type if inner.type in _VARIADIC else ""
    )
