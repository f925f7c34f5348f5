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
    """Call: called identifier, argument list with its brackets, arguments, and names of the keyword arguments."""

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
        variadics = {parameter.rest for parameter in self.parameters}
        if positional > len(plain) and not variadics & {"list_splat_pattern", "rest_pattern"}:
            return False
        if {parameter.name for parameter in plain[:positional]} & {*keywords}:
            return False
        remaining = plain[positional:] + keyword_only
        if not set(keywords) <= {one.name for one in remaining} and "dictionary_splat_pattern" not in variadics:
            return False
        return all(parameter.optional or parameter.name in keywords for parameter in remaining)

    def fits_call(self, call: Call) -> bool:
        """Return whether a call is valid for this signature."""
        return self.fits(call.positional, call.keywords)

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
    name = argument.child_by_field_name("name") if argument.type == "keyword_argument" else None
    return source.text_of(name) if name is not None else ""


def call_with(source: ParsedSource, names: BindingIndex, arguments: Node) -> Call | None:
    """Return the call with this argument list; None if its callee or its number of arguments is unclear."""
    call = arguments.parent
    if call is None or call.type not in _CALLS:
        return None
    callee = call.child_by_field_name("function") or call.child_by_field_name("constructor")
    while callee is not None and callee.type in {"attribute", "member_expression"}:
        callee = callee.child_by_field_name("attribute") or callee.child_by_field_name("property")
    name, entries = names.at(callee) if callee is not None else None, items(arguments)
    if name is None or any(one.type in _SPREAD for one in entries):
        return None
    return Call(name, arguments, entries, tuple(filter(None, (keyword(source, one) for one in entries))))


def function_with(source: ParsedSource, parameters: Node, *, as_member: bool) -> Function | None:
    """Return the function with this parameter list. `as_member`: calls use it as a method or constructor."""
    node = parameters.parent
    if node is None:
        return None
    hidden = int(source.language == "python" and as_member and python_names.method_class(node) is not None)
    return Function([_parameter(source, one) for one in items(parameters)], hidden)


def called_function(source: ParsedSource, names: BindingIndex, call: Call) -> Function | None:
    """Return the function in this file that a call refers to; None unless there is exactly one."""
    scope = names.scope(call.name)
    bindings = names.bindings(source.text_of(call.name.node), scope) if scope else []
    parameters = _parameter_list_of(source, bindings[0].node) if len(bindings) == 1 else None
    if parameters is None or scope is None:
        return None
    is_constructed = bindings[0].node.parent is not None and "class" in bindings[0].node.parent.type
    return function_with(source, parameters, as_member=scope.has_members or is_constructed)


def name_of(source: ParsedSource, parameters: Node) -> Node | None:
    """Return the name node of the function with this parameter list, or of a constructor's class; None if unnamed."""
    function = parameters.parent
    name = function.child_by_field_name("name") if function is not None else None
    if name is None and function is not None and function.parent is not None and is_field(function, "value"):
        name = function.parent.child_by_field_name("name")
    if name is None or source.text_of(name) not in _CONSTRUCTORS:
        return name
    class_node: Node | None = name
    while class_node is not None and "class" not in class_node.type.split("_"):
        class_node = class_node.parent
        if class_node is not None and class_node.type == "class_body":
            class_node = class_node.parent
    return class_node.child_by_field_name("name") if class_node is not None else None


def calls(source: ParsedSource, names: BindingIndex, name: Occurrence) -> list[Call]:
    """Return all calls of the function bound at an identifier, in file order."""
    scope = names.scope(name)
    results = []
    for occurrence in names.references(source.text_of(name.node), scope) if scope else ():
        callee = occurrence.node
        while callee.parent is not None and callee.parent.type in {"attribute", "member_expression"}:
            callee = callee.parent
        if callee.parent is None or callee.parent.type not in _CALLS or is_field(callee, "arguments"):
            continue
        arguments = callee.parent.child_by_field_name("arguments")
        call = call_with(source, names, arguments) if arguments is not None else None
        if call and call.name.node == occurrence.node:
            results.append(call)
    return results


def _parameter_list_of(source: ParsedSource, name: Node) -> Node | None:
    definition = name.parent
    if definition is None:
        return None
    value = definition.child_by_field_name("value")
    if "class" in definition.type:
        body = definition.child_by_field_name("body")
        members = [one.child_by_field_name("definition") or one for one in body.named_children] if body else []
        names = [(one, one.child_by_field_name("name")) for one in members]
        constructors = [one for one, named in names if named is not None and source.text_of(named) in _CONSTRUCTORS]
        definition = constructors[0] if len(constructors) == 1 else None
    elif value is not None and value.type in {"arrow_function", "function_expression"}:
        definition = value
    return definition.child_by_field_name("parameters") if definition is not None else None


def _parameter(source: ParsedSource, node: Node) -> Parameter:
    identifier: Node | None
    if source.language == "python":
        identifier = python_names.parameter_name(node)
        inner = node.named_children[0] if node.type == "typed_parameter" else node
    else:
        inner = node.child_by_field_name("pattern") or node.child_by_field_name("left") or node
        identifier = inner if inner.type == "identifier" else None
    has_default = node.child_by_field_name("value") is not None
    optional = has_default or node.type in {"optional_parameter", "assignment_pattern"}
    name = source.text_of(identifier) if identifier is not None else ""
    return Parameter(name, optional, inner.type if inner.type in _VARIADIC else "")
