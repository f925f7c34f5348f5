"""Find uses of a class member through variables whose annotation or value tells their class."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from localdflash.code.next_edit.bindings import BindingIndex, Occurrence
from localdflash.code.next_edit.source import ParsedSource, Scope, is_field, outward

_ACCESSES = {"attribute": "attribute", "member_expression": "property"}
_FUNCTIONS = {"function_declaration", "arrow_function", "method_definition", "function_expression"}


def find_typed_uses(source: ParsedSource, names: BindingIndex, name: str, scope: Scope) -> list[Node]:
    """Return the uses of member `name` of class `scope`: on variables of the class, and as keywords of its calls."""
    class_name = scope.node.child_by_field_name("name") if scope.has_members else None
    if class_name is None:
        return []
    class_re = re.compile(rf"\b{re.escape(source.text_of(class_name))}\b")
    return [leaf for leaf in source.leaves_called(name) if _is_use(source, names, leaf, class_re)]


def _is_use(source: ParsedSource, names: BindingIndex, leaf: Node, class_re: re.Pattern[str]) -> bool:
    parent = leaf.parent
    if parent is None:
        return False
    if parent.type in _ACCESSES and is_field(leaf, _ACCESSES[parent.type]):
        holder = parent.child_by_field_name("object")
        variable = names.at(holder) if holder is not None else None
        return variable is not None and _has_class(source, names, variable, class_re)
    if parent.type == "keyword_argument" and is_field(leaf, "name"):
        call = parent.parent.parent if parent.parent is not None else None
        callee = call.child_by_field_name("function") if call is not None else None
        return callee is not None and bool(class_re.fullmatch(source.text_of(callee)))
    if parent.type == "pair" and is_field(leaf, "key") and parent.parent is not None:
        return _is_typed_literal(source, parent.parent, class_re)
    return False


def _has_class(source: ParsedSource, names: BindingIndex, variable: Occurrence, class_re: re.Pattern[str]) -> bool:
    """Return whether every binding of a name has a hint of this class: annotation, value or iterable."""
    scope = names.scope(variable)
    bindings = names.bindings(source.text_of(variable.node), scope) if scope else []
    hints = [list(_type_hints(source, names, binding.node)) for binding in bindings]
    return bool(hints) and all(any(class_re.search(source.text_of(node)) for node in nodes) for nodes in hints)


def _type_hints(source: ParsedSource, names: BindingIndex, binding: Node, *, inner: bool = False) -> Iterator[Node]:
    """Yield nodes that show a binding's class: annotation, callee of its value, or the hints of a loop's iterable."""
    for child, parent in outward(binding):
        if annotation := parent.child_by_field_name("type"):
            yield annotation
            return
        value = parent.child_by_field_name("right") or parent.child_by_field_name("value")
        if value is not None and value != child:
            callee = value.child_by_field_name("function") or value.child_by_field_name("constructor")
            if callee is not None:
                yield callee
            elif "for" in parent.type and not inner and (used := names.at(value)) and (scope := names.scope(used)):
                for one in names.bindings(source.text_of(value), scope):
                    yield from _type_hints(source, names, one.node, inner=True)
            return
        if parent.type not in {"typed_parameter", "required_parameter", "optional_parameter"}:
            return


def _is_typed_literal(source: ParsedSource, literal: Node, class_re: re.Pattern[str]) -> bool:
    """Return whether an object literal initialises a declaration of this type or is returned as this type."""
    for child, parent in outward(literal):
        field = "return_type" if parent.type in _FUNCTIONS else "type"
        annotation = parent.child_by_field_name(field)
        if annotation is not None:
            return bool(class_re.fullmatch(source.text_of(annotation).lstrip(": ")))
        if parent.type not in {"return_statement", "statement_block", "parenthesized_expression"} and child != literal:
            return False
    return False
